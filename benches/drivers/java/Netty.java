import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.lang.reflect.Field;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * Netty's HashedWheelTimer with a tick of 1 ms, which is the tick of ours; the rest are its defaults. Tasks
 * run on its own thread, also those that block.
 *
 * <p>Keys go through a ConcurrentHashMap. Whoever takes the timeout out of the map decides: a task whose
 * timeout is not there was stopped or replaced.
 */
final class Netty implements Library {
    /** The timer, and what its calls leave to its thread. */
    private abstract static class Wheel implements Library.Timers {
        final HashedWheelTimer timer = new HashedWheelTimer(1, TimeUnit.MILLISECONDS);
        private final Queue<?> started = queue("timeouts");
        private final Queue<?> cancelled = queue("cancelledTimeouts");

        private Queue<?> queue(String name) {
            try {
                Field field = HashedWheelTimer.class.getDeclaredField(name);
                field.setAccessible(true);
                return (Queue<?>) field.get(timer);
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException("this Netty keeps its queues elsewhere", error);
            }
        }

        /** A call only puts its timeout into a queue; the thread files or drops it with the next tick. */
        @Override
        public void settle() {
            while (!started.isEmpty() || !cancelled.isEmpty()) {
                LockSupport.parkNanos(20_000);
            }
        }

        @Override
        public void close() {
            timer.stop();
        }
    }

    @Override
    public Library.Keyed keyed(boolean mayBlock) {
        return new ByKey();
    }

    @Override
    public Library.Handles handles() {
        return new ByHandle();
    }

    private static final class ByKey extends Wheel implements Library.Keyed {
        private final ConcurrentHashMap<Long, Timeout> armed = new ConcurrentHashMap<>();

        /** It outlives a touch: only its timeout is a new one then. */
        private final class Task implements TimerTask {
            private final Long key;

            Task(Long key) {
                this.key = key;
            }

            @Override
            public void run(Timeout timeout) {
                if (armed.remove(key, timeout)) {
                    Recorder.fired(key);
                }
            }
        }

        private Timeout arm(TimerTask task, long delayNanos) {
            return timer.newTimeout(task, delayNanos, TimeUnit.NANOSECONDS);
        }

        @Override
        public void start(long key, long delayNanos) {
            armed.compute(
                    key,
                    (boxed, old) -> {
                        if (old != null) {
                            old.cancel();
                        }
                        return arm(new Task(boxed), delayNanos);
                    });
        }

        @Override
        public boolean stop(long key) {
            Timeout timeout = armed.remove(key);
            if (timeout != null) {
                timeout.cancel();
            }
            return timeout != null;
        }

        @Override
        public boolean touch(long key, long delayNanos) {
            return armed.computeIfPresent(
                            key,
                            (boxed, old) -> {
                                old.cancel();
                                return arm(old.task(), delayNanos);
                            })
                    != null;
        }

        @Override
        public long pending() {
            return armed.mappingCount();
        }
    }

    private static final class ByHandle extends Wheel implements Library.Handles {
        @Override
        public Object start(long value, long delayNanos) {
            TimerTask task = timeout -> Recorder.fired(value);
            return timer.newTimeout(task, delayNanos, TimeUnit.NANOSECONDS);
        }

        @Override
        public boolean stop(Object timeout) {
            return ((Timeout) timeout).cancel();
        }

        @Override
        public long pending() {
            return timer.pendingTimeouts();
        }
    }
}
