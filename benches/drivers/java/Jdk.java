import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * The JDK's ScheduledThreadPoolExecutor, which removes what is cancelled: without that every request's
 * timeout would stay until it is due. One thread for short tasks and eight where some of them block.
 *
 * <p>Keys go through a ConcurrentHashMap. Whoever takes the entry out of the map decides: a task that does
 * not find itself there was stopped or replaced.
 */
final class Jdk implements Library {
    private static ScheduledThreadPoolExecutor executor(boolean mayBlock) {
        ScheduledThreadPoolExecutor executor =
                new ScheduledThreadPoolExecutor(mayBlock ? 8 : 1);
        executor.setRemoveOnCancelPolicy(true);
        return executor;
    }

    @Override
    public Library.Keyed keyed(boolean mayBlock) {
        return new ByKey(mayBlock);
    }

    @Override
    public Library.Handles handles() {
        return new ByHandle();
    }

    private static final class ByKey implements Library.Keyed {
        private final ScheduledThreadPoolExecutor executor;
        private final ConcurrentHashMap<Long, Entry> armed = new ConcurrentHashMap<>();

        ByKey(boolean mayBlock) {
            executor = executor(mayBlock);
        }

        /** A task and its entry in the map, in one object. */
        private final class Entry implements Runnable {
            final Long key;
            Future<?> future;

            Entry(Long key, long delayNanos) {
                this.key = key;
                future = executor.schedule(this, delayNanos, TimeUnit.NANOSECONDS);
            }

            @Override
            public void run() {
                if (armed.remove(key, this)) {
                    Recorder.fired(key);
                }
            }
        }

        @Override
        public void start(long key, long delayNanos) {
            armed.compute(
                    key,
                    (boxed, old) -> {
                        if (old != null) {
                            old.future.cancel(false);
                        }
                        return new Entry(boxed, delayNanos);
                    });
        }

        @Override
        public boolean stop(long key) {
            Entry entry = armed.remove(key);
            if (entry != null) {
                entry.future.cancel(false);
            }
            return entry != null;
        }

        @Override
        public boolean touch(long key, long delayNanos) {
            return armed.computeIfPresent(
                            key,
                            (boxed, old) -> {
                                old.future.cancel(false);
                                return new Entry(boxed, delayNanos);
                            })
                    != null;
        }

        @Override
        public long pending() {
            return armed.mappingCount();
        }

        /** Every call is done when it returns. */
        @Override
        public void settle() {}

        @Override
        public void close() {
            executor.shutdownNow();
        }
    }

    private static final class ByHandle implements Library.Handles {
        private final ScheduledThreadPoolExecutor executor = executor(false);

        @Override
        public Object start(long value, long delayNanos) {
            return executor.schedule(
                    () -> Recorder.fired(value), delayNanos, TimeUnit.NANOSECONDS);
        }

        @Override
        public boolean stop(Object timeout) {
            return ((Future<?>) timeout).cancel(false);
        }

        @Override
        public long pending() {
            return executor.getQueue().size();
        }

        @Override
        public void settle() {}

        @Override
        public void close() {
            executor.shutdownNow();
        }
    }
}
