import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What fired, and how late: the counterpart of `recorder.rs`, with the same stamps and the same buckets. Each
 * thread writes to fields of its own. They are read when a round is over.
 */
final class Recorder {
    static final long LONG_TASK_MILLIS = 500;

    private static final int PER_OCTAVE = 32;
    private static final int BUCKETS = 34 * PER_OCTAVE;
    private static final int NUMBER_BITS = 24;
    /** Stamps count microseconds from here. */
    private static final long START = System.nanoTime();

    private static final List<Local> LOCALS = new CopyOnWriteArrayList<>();
    private static final ThreadLocal<Local> LOCAL =
            ThreadLocal.withInitial(
                    () -> {
                        Local local = new Local();
                        LOCALS.add(local);
                        return local;
                    });

    private static volatile boolean stamped;
    /** Set when somebody wants to know of each timer, which then is not counted. */
    private static volatile Listener listener;

    private Recorder() {}

    interface Listener {
        void fired(long value);
    }

    /** Written by one thread. A reader of `fired` sees the rest. */
    private static final class Local {
        final AtomicLong fired = new AtomicLong();
        long sum;
        final long[] lateness = new long[BUCKETS];
        long latest;
        long lastRan;
        long early;
        long earliest;
    }

    /** From now on values are stamps. */
    static void expectStamps() {
        stamped = true;
    }

    static void listen(Listener to) {
        listener = to;
    }

    /** The eight bytes of a timer: when it is due, rounded down, whether its task is long, a number. */
    static long stamp(long dueNanos, boolean isLong, long number) {
        long micros = (dueNanos - START) / 1_000;
        return micros << (NUMBER_BITS + 1) | (isLong ? 1L << NUMBER_BITS : 0) | number;
    }

    /** What every timer that fires calls. */
    static void fired(long value) {
        Listener told = listener;
        if (told != null) {
            told.fired(value);
            return;
        }
        Local local = LOCAL.get();
        if (stamped) {
            stamped(local, value);
        }
        local.sum += value;
        // A release: who sees the count sees what was recorded before it.
        local.fired.lazySet(local.fired.getPlain() + 1);
    }

    private static void stamped(Local local, long value) {
        long now = System.nanoTime() - START;
        long due = (value >>> (NUMBER_BITS + 1)) * 1_000;
        long late = now - due;
        if (late < 0) {
            local.early++;
            local.earliest = Math.max(local.earliest, -late);
        }
        if ((value >>> NUMBER_BITS & 1) != 0) {
            sleep(LONG_TASK_MILLIS);
            return;
        }
        local.lateness[bucket(Math.max(late, 0))]++;
        local.latest = Math.max(local.latest, late);
        local.lastRan = Math.max(local.lastRan, now);
    }

    static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException ended) {
            // The end of a system that was only there for the warm-up.
            Thread.currentThread().interrupt();
        }
    }

    private static int bucket(long nanos) {
        if (nanos < 2 * PER_OCTAVE) {
            return (int) nanos;
        }
        int shift = 63 - Long.numberOfLeadingZeros(nanos) - 5;
        return (int) Math.min(shift * (long) PER_OCTAVE + (nanos >>> shift), BUCKETS - 1);
    }

    private static long upperEnd(int bucket) {
        if (bucket < 2 * PER_OCTAVE) {
            return bucket;
        }
        int shift = bucket / PER_OCTAVE - 1;
        return (((long) bucket - shift * (long) PER_OCTAVE + 1) << shift) - 1;
    }

    static long firedSoFar() {
        long fired = 0;
        for (Local local : LOCALS) {
            fired += local.fired.getAcquire();
        }
        return fired;
    }

    /** Waits until `count` timers have fired in all. Those that don't come are an error. */
    static void waitUntilFired(long count, long limitMillis) {
        long began = System.nanoTime();
        while (firedSoFar() < count) {
            if (System.nanoTime() - began > limitMillis * 1_000_000) {
                throw new IllegalStateException(
                        "only " + firedSoFar() + " of " + count + " timers have fired");
            }
            sleep(1);
        }
    }

    /** How late those were that fired since the last call. */
    static final class Lateness {
        private final long[] counts = new long[BUCKETS];
        private long latest;
        private long lastRan;
        long early;
        long earliest;
        long count;

        /** In milliseconds; so many per mille were at most so late. */
        double perMille(long perMille) {
            long rank = Math.max((count * perMille + 999) / 1_000, 1);
            long seen = 0;
            for (int at = 0; at < BUCKETS; at++) {
                seen += counts[at];
                if (seen >= rank) {
                    return Math.min(upperEnd(at), latest) / 1e6;
                }
            }
            return 0;
        }

        double max() {
            return latest / 1e6;
        }

        /** How long after this moment the last one ran, in milliseconds. */
        double lastRanAfter(long nanos) {
            return Math.max(lastRan - (nanos - START), 0) / 1e6;
        }
    }

    /** For the time between two rounds, when nothing fires. */
    static Lateness takeLateness() {
        Lateness taken = new Lateness();
        for (Local local : LOCALS) {
            local.fired.getAcquire();
            for (int at = 0; at < BUCKETS; at++) {
                taken.counts[at] += local.lateness[at];
                taken.count += local.lateness[at];
                local.lateness[at] = 0;
            }
            taken.latest = Math.max(taken.latest, local.latest);
            taken.lastRan = Math.max(taken.lastRan, local.lastRan);
            taken.early += local.early;
            taken.earliest = Math.max(taken.earliest, local.earliest);
            local.latest = local.lastRan = local.early = local.earliest = 0;
        }
        return taken;
    }
}
