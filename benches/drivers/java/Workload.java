import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongUnaryOperator;

/** A workload on one system: the counterpart of a file in `src/workloads`, which says what it is. */
abstract class Workload {
    static final long MILLI = 1_000_000L;
    static final long SECOND = 1_000 * MILLI;
    static final long MINUTE = 60 * SECOND;

    final long keys;
    /** The time of the last round. */
    long tookNanos;

    Workload(long keys) {
        this.keys = keys;
    }

    /** What is there before the first round. */
    void fill() {}

    /** One figure for each metric of the workload; NaN for one that the platform does not tell. */
    abstract double[] round(int which, long amount, long seed) throws Exception;

    abstract Library.Timers timers();

    int cases() {
        return 1;
    }

    /** How much a round of the warm-up does. */
    abstract long warmUpAmount();

    /** Whether a heap without garbage is what it asks for. */
    boolean weighs() {
        return false;
    }

    static Workload open(Library library, String name, long keys, boolean warmUp) {
        switch (name) {
            case "W1":
                return new Pairs(library.handles(), keys);
            case "W1k":
                return new KeyedPairs(library.keyed(false), keys, COUNTED);
            case "W1x":
                return new KeyedPairs(library.keyed(false), keys, Rng::mixed);
            case "W2":
                return new Touch(library.keyed(false), keys);
            case "W3":
                return new Timeouts(library.keyed(false));
            case "W4":
                return Mass.byKey(library.keyed(false), warmUp ? 100 * MILLI : 2 * SECOND, true);
            case "W4i":
                return Mass.byKey(library.keyed(false), 0, false);
            case "W4h":
                Library.Handles handles = library.handles();
                return new Mass(handles, handles::start, 0, false);
            case "W5":
                return new Paced(library.keyed(true), 41, 10 * MILLI);
            case "W6":
                return new Idle(library.keyed(false), keys);
            case "W7":
                return new Memory(library.keyed(false), keys);
            case "W8":
                return new Inserts(library, keys, COUNTED);
            case "W8x":
                return new Inserts(library, keys, Rng::mixed);
            case "W9":
                return new Cascade(library.keyed(false), keys);
            default:
                throw new IllegalArgumentException("no workload is called " + name);
        }
    }

    // What several workloads need.

    /** Makes the key of a number: the number. The other way is `Rng.mixed`. */
    static final LongUnaryOperator COUNTED = number -> number;

    /** SplitMix64, as in `rng.rs`. */
    static final class Rng {
        private long state;

        Rng(long seed) {
            state = seed;
        }

        long next() {
            state += 0x9e3779b97f4a7c15L;
            return mixed(state);
        }

        /** A number that looks random; another one for each number. */
        static long mixed(long number) {
            long z = (number ^ (number >>> 30)) * 0xbf58476d1ce4e5b9L;
            z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
            return z ^ (z >>> 31);
        }

        /** A number below `bound`: the high half of the product of two unsigned numbers. */
        long below(long bound) {
            long next = next();
            return Math.multiplyHigh(next, bound) + ((next >> 63) & bound);
        }

        long between(long from, long to) {
            return from + below(to - from);
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    static void filled(Library.Timers timers, long keys) {
        timers.settle();
        long pending = timers.pending();
        check(pending == keys, pending + " of " + keys + " timers are pending after the fill");
    }

    static void fill(Library.Keyed timers, long keys, long from, long to) {
        fill(timers, keys, COUNTED, from, to);
    }

    static void fill(
            Library.Keyed timers, long keys, LongUnaryOperator keyOf, long from, long to) {
        Rng rng = new Rng(0xf111);
        for (long number = 0; number < keys; number++) {
            timers.start(keyOf.applyAsLong(number), from == to ? from : rng.between(from, to));
        }
        filled(timers, keys);
    }

    /**
     * Runs `work` on threads that begin together and get their number. The time is that of all of it, what
     * was left to others included.
     */
    long[] producers(Library.Timers timers, int threads, LongUnaryOperator work)
            throws InterruptedException {
        CyclicBarrier barrier = new CyclicBarrier(threads);
        long[] began = new long[threads];
        long[] ended = new long[threads];
        long[] results = new long[threads];
        AtomicReference<Throwable> failure = new AtomicReference<>();
        List<Thread> running = new ArrayList<>();
        for (int at = 0; at < threads; at++) {
            int number = at;
            Runnable produce =
                    () -> {
                        try {
                            barrier.await();
                            began[number] = System.nanoTime();
                            results[number] = work.applyAsLong(number);
                            ended[number] = System.nanoTime();
                        } catch (Throwable thrown) {
                            failure.set(thrown);
                        }
                    };
            Thread thread = new Thread(produce, "producer");
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a producer failed", failure.get());
        }
        long settling = System.nanoTime();
        timers.settle();
        long settled = System.nanoTime() - settling;
        long first = began[0];
        long last = ended[0];
        for (int at = 1; at < threads; at++) {
            first = Math.min(first, began[at]);
            last = Math.max(last, ended[at]);
        }
        tookNanos = last - first + settled;
        return results;
    }

    static Recorder.Lateness latenessOf(long count) {
        Recorder.Lateness lateness = Recorder.takeLateness();
        check(lateness.count == count, lateness.count + " of " + count + " timers fired");
        check(lateness.earliest == 0, "a timer ran " + lateness.earliest + " ns early");
        return lateness;
    }

    /** NaN where the platform does not say. Pages of 4 KiB. */
    static double residentBytes() {
        try {
            String[] fields = Files.readString(Path.of("/proc/self/statm")).split(" ");
            return Long.parseLong(fields[1]) * 4096.0;
        } catch (IOException elsewhere) {
            return Double.NaN;
        }
    }

    // The workloads.

    /** W1, W1k and W1x. */
    private abstract static class StartStop extends Workload {
        StartStop(long keys) {
            super(keys);
        }

        /** Starts a timer and stops it. Whether it had not fired. */
        abstract boolean pair(long number, long delayNanos);

        abstract void guard(boolean on);

        @Override
        int cases() {
            return 2;
        }

        @Override
        long warmUpAmount() {
            return 100_000;
        }

        @Override
        double[] round(int which, long amount, long seed) {
            long from = which == 0 ? MILLI : 60 * MINUTE;
            long to = which == 0 ? 60 * SECOND : 120 * MINUTE;
            Rng rng = new Rng(seed);
            long firedBefore = Recorder.firedSoFar();
            if (which == 1) {
                guard(true);
                timers().settle();
            }
            long began = System.nanoTime();
            long stopped = pairs(rng, amount, from, to);
            timers().settle();
            tookNanos = System.nanoTime() - began;
            if (which == 1) {
                guard(false);
            }
            // A timer of a millisecond can fire when the thread is held up in between.
            Recorder.waitUntilFired(firedBefore + amount - stopped, 60_000);
            return new double[] {(double) tookNanos / amount};
        }

        private long pairs(Rng rng, long amount, long from, long to) {
            long stopped = 0;
            for (long number = 0; number < amount; number++) {
                if (pair(number, rng.between(from, to))) {
                    stopped++;
                }
            }
            return stopped;
        }
    }

    private static final class Pairs extends StartStop {
        private final Library.Handles timers;
        private Object guard;

        Pairs(Library.Handles timers, long keys) {
            super(keys);
            this.timers = timers;
        }

        @Override
        void fill() {
            Rng rng = new Rng(0xf111);
            for (long value = 0; value < keys; value++) {
                timers.start(value, rng.between(60 * MINUTE, 120 * MINUTE));
            }
            filled(timers, keys);
        }

        @Override
        boolean pair(long number, long delayNanos) {
            return timers.stop(timers.start(number, delayNanos));
        }

        @Override
        void guard(boolean on) {
            if (on) {
                guard = timers.start(0, 30 * MINUTE);
            } else {
                timers.stop(guard);
            }
        }

        @Override
        Library.Timers timers() {
            return timers;
        }
    }

    private static final class KeyedPairs extends StartStop {
        private final Library.Keyed timers;
        private final LongUnaryOperator keyOf;

        KeyedPairs(Library.Keyed timers, long keys, LongUnaryOperator keyOf) {
            super(keys);
            this.timers = timers;
            this.keyOf = keyOf;
        }

        @Override
        void fill() {
            fill(timers, keys, keyOf, 60 * MINUTE, 120 * MINUTE);
        }

        @Override
        boolean pair(long number, long delayNanos) {
            long key = keyOf.applyAsLong(keys + number);
            timers.start(key, delayNanos);
            return timers.stop(key);
        }

        @Override
        void guard(boolean on) {
            if (on) {
                timers.start(-1, 30 * MINUTE);
            } else {
                timers.stop(-1);
            }
        }

        @Override
        Library.Timers timers() {
            return timers;
        }
    }

    /** A workload with keys alone. */
    private abstract static class Keyed extends Workload {
        final Library.Keyed timers;

        Keyed(Library.Keyed timers, long keys) {
            super(keys);
            this.timers = timers;
        }

        @Override
        Library.Timers timers() {
            return timers;
        }
    }

    /** W2. */
    private static final class Touch extends Keyed {
        private static final long IDLE = 30 * MINUTE;

        Touch(Library.Keyed timers, long keys) {
            super(timers, keys);
        }

        @Override
        int cases() {
            return 2;
        }

        @Override
        long warmUpAmount() {
            return 200_000;
        }

        @Override
        void fill() {
            fill(timers, keys, IDLE, IDLE);
        }

        @Override
        double[] round(int which, long amount, long seed) throws Exception {
            long each = amount / (which + 1);
            long touched = 0;
            for (long count :
                    producers(timers, which + 1, number -> touch(each, seed ^ (number << 32)))) {
                touched += count;
            }
            check(touched == each * (which + 1), "every key is there");
            return new double[] {touched * 1e3 / tookNanos};
        }

        private long touch(long count, long seed) {
            Rng rng = new Rng(seed);
            long touched = 0;
            for (long at = 0; at < count; at++) {
                if (timers.touch(rng.below(keys), IDLE)) {
                    touched++;
                }
            }
            return touched;
        }
    }

    /** W3. */
    private static final class Timeouts extends Keyed {
        private static final long TIMEOUT = 30 * SECOND;
        private static final long WINDOW = 1_000;
        private static final long STRIDE = 128;
        private static final double BEFORE = residentBytes();

        Timeouts(Library.Keyed timers) {
            super(timers, 0);
        }

        @Override
        int cases() {
            return 2;
        }

        @Override
        long warmUpAmount() {
            return 200;
        }

        @Override
        double[] round(int which, long amount, long seed) throws Exception {
            int threads = which + 1;
            long firedBefore = Recorder.firedSoFar();
            long[] stopped = new long[threads];
            long[] started =
                    producers(timers, threads, number -> operate((int) number, amount, stopped));
            double grown = (residentBytes() - BEFORE) / 1e6;
            long gone = 0;
            long operations = 0;
            for (int at = 0; at < threads; at++) {
                operations += started[at];
                gone += started[at] - stopped[at] - WINDOW;
            }
            Recorder.waitUntilFired(firedBefore + Math.max(gone, 0), 60_000);
            return new double[] {operations * 1e3 / tookNanos, grown};
        }

        private long operate(int number, long millis, long[] allStopped) {
            long first = (long) number << 40;
            long end = System.nanoTime() + millis * MILLI;
            long next = first;
            long stopped = 0;
            while (System.nanoTime() - end < 0) {
                for (long at = 0; at < STRIDE; at++) {
                    timers.start(next, TIMEOUT);
                    if (next - first >= WINDOW && timers.stop(next - WINDOW)) {
                        stopped++;
                    }
                    next++;
                }
            }
            allStopped[number] = stopped;
            return next - first;
        }
    }

    /** W4, W4i and W4h. */
    private static final class Mass extends Workload {
        private final Library.Timers timers;
        private final Start start;
        private final long span;
        private final boolean spread;

        interface Start {
            void start(long value, long delayNanos);
        }

        static Mass byKey(Library.Keyed timers, long span, boolean spread) {
            return new Mass(timers, timers::start, span, spread);
        }

        Mass(Library.Timers timers, Start start, long span, boolean spread) {
            super(0);
            this.timers = timers;
            this.start = start;
            this.span = span;
            this.spread = spread;
            Recorder.expectStamps();
        }

        @Override
        Library.Timers timers() {
            return timers;
        }

        @Override
        long warmUpAmount() {
            return 50_000;
        }

        @Override
        double[] round(int which, long amount, long seed) {
            long lead = 200 * MILLI + 2_000 * amount;
            while (true) {
                long firedBefore = Recorder.firedSoFar();
                long began = System.nanoTime();
                long first = began + lead;
                arm((int) amount, seed, first);
                boolean inTime = System.nanoTime() - first < 0;
                double cpu = Cpu.ofOthersNanos();
                Recorder.waitUntilFired(firedBefore + amount, (lead + span) / MILLI + 120_000);
                cpu = (Cpu.ofOthersNanos() - cpu) / 1e9;
                if (!inTime) {
                    Recorder.takeLateness();
                    lead *= 2;
                    continue;
                }
                Recorder.Lateness lateness = latenessOf(amount);
                tookNanos = System.nanoTime() - began;
                return spread
                        ? new double[] {
                            lateness.perMille(500), lateness.perMille(990), lateness.max(), cpu
                        }
                        : new double[] {lateness.lastRanAfter(first), cpu};
            }
        }

        /** Evenly over the span, in random order. */
        private void arm(int count, long seed, long first) {
            int[] places = new int[count];
            for (int at = 0; at < count; at++) {
                places[at] = at;
            }
            Rng rng = new Rng(seed);
            for (int left = count - 1; left >= 1; left--) {
                int other = (int) rng.below(left + 1L);
                int place = places[left];
                places[left] = places[other];
                places[other] = place;
            }
            for (int number : places) {
                long due = first + (long) ((double) span * number / count);
                long key = Recorder.stamp(due, false, number);
                start.start(key, Math.max(due - System.nanoTime(), 0));
            }
            timers.settle();
        }
    }

    /** W5: a producer of 10,000 timers a second. */
    private static class Paced extends Keyed {
        private static final int PER_STEP = 10;

        private final long longTasks;
        private final long from;

        Paced(Library.Keyed timers, long longTasks, long from) {
            this(timers, 0, longTasks, from);
        }

        Paced(Library.Keyed timers, long keys, long longTasks, long from) {
            super(timers, keys);
            this.longTasks = longTasks;
            this.from = from;
            Recorder.expectStamps();
        }

        @Override
        long warmUpAmount() {
            return 200;
        }

        @Override
        double[] round(int which, long amount, long seed) {
            // As many as in the five seconds of the full form, by the time; at least one.
            // In the second case no task takes long.
            long many = longTasks == 0 || which > 0 ? 0 : Math.max(longTasks * amount / 5_000, 1);
            long firedBefore = Recorder.firedSoFar();
            long began = System.nanoTime();
            long total = produce(amount, many, seed);
            Recorder.waitUntilFired(
                    firedBefore + total, 60_000 + many * Recorder.LONG_TASK_MILLIS);
            Recorder.Lateness lateness = latenessOf(total - many);
            tookNanos = System.nanoTime() - began;
            return new double[] {
                lateness.perMille(500), lateness.perMille(990), lateness.perMille(999), lateness.max()
            };
        }

        private long produce(long millis, long many, long seed) {
            long total = millis * PER_STEP;
            long gap = total / Math.max(many, 1);
            Rng rng = new Rng(seed);
            long planned = System.nanoTime();
            long number = 0;
            while (number < total) {
                long left = planned - System.nanoTime();
                if (left >= 0) {
                    sleepNanos(left);
                    long woke = System.nanoTime();
                    if (woke > planned + MILLI) {
                        planned = woke;
                    }
                }
                for (int at = 0; at < PER_STEP; at++) {
                    long due = planned + rng.between(from, 60 * MILLI);
                    boolean isLong = many > 0 && number % gap == gap / 2;
                    long key = Recorder.stamp(due, isLong, number);
                    timers.start(key, Math.max(due - System.nanoTime(), 0));
                    number++;
                }
                planned += MILLI;
            }
            return total;
        }

        private static void sleepNanos(long nanos) {
            long until = System.nanoTime() + nanos;
            long left = nanos;
            while (left > 0) {
                java.util.concurrent.locks.LockSupport.parkNanos(left);
                left = until - System.nanoTime();
            }
        }
    }

    /** W9. */
    private static final class Cascade extends Paced {
        private static final long AHEAD = 60 * SECOND;
        private static final long SLOT = 64 * 64 * 64 * MILLI;

        private long first;

        Cascade(Library.Keyed timers, long keys) {
            super(timers, keys, 0, MILLI);
        }

        @Override
        void fill() {
            first = System.nanoTime() + AHEAD;
            Rng rng = new Rng(0xf111);
            for (long key = 0; key < keys; key++) {
                timers.start(key, Math.max(first + rng.below(SLOT) - System.nanoTime(), 0));
            }
            filled(timers, keys);
        }

        @Override
        double[] round(int which, long amount, long seed) {
            double[] figures = super.round(which, amount, seed);
            check(System.nanoTime() < first, "the round has to end before the others come due");
            return figures;
        }
    }

    /** W6. */
    private static final class Idle extends Keyed {
        private static final long TASKS = 1_000;
        private static final long REST_MILLIS = 12_000;
        private static final long SHORTEST_MILLIS = 1_000;

        private boolean rested;

        Idle(Library.Keyed timers, long keys) {
            super(timers, keys);
        }

        @Override
        long warmUpAmount() {
            return 1;
        }

        @Override
        void fill() {
            fill(timers, keys, 60 * MINUTE, 60 * MINUTE);
        }

        @Override
        double[] round(int which, long millis, long seed) {
            if (!rested) {
                long before = Recorder.firedSoFar();
                for (long task = 0; task < TASKS; task++) {
                    timers.start(keys + task, MILLI);
                }
                Recorder.waitUntilFired(before + TASKS, 60_000);
                if (millis >= SHORTEST_MILLIS) {
                    Recorder.sleep(REST_MILLIS);
                }
            }
            rested = true;
            long began = System.nanoTime();
            double cpu = Cpu.ofOthersNanos();
            double switches = Cpu.switches();
            Recorder.sleep(millis);
            cpu = (Cpu.ofOthersNanos() - cpu) / 1e6;
            // The waiting thread itself goes to sleep once.
            switches = Math.max(Cpu.switches() - switches - 1, 0);
            tookNanos = System.nanoTime() - began;
            return new double[] {cpu, switches};
        }
    }

    /** W7: all of it is in the fill. */
    private static final class Memory extends Keyed {
        private double each;
        private long fillNanos;

        Memory(Library.Keyed timers, long keys) {
            super(timers, keys);
        }

        @Override
        boolean weighs() {
            return true;
        }

        @Override
        long warmUpAmount() {
            return 0;
        }

        @Override
        void fill() {
            System.gc();
            double before = residentBytes();
            long began = System.nanoTime();
            fill(timers, keys, 60 * MINUTE, 120 * MINUTE);
            fillNanos = System.nanoTime() - began;
            System.gc();
            each = (residentBytes() - before) / keys;
        }

        @Override
        double[] round(int which, long amount, long seed) {
            tookNanos = fillNanos;
            return new double[] {each};
        }
    }

    /** W8 and W8x. The warm-up does several rounds, each of which needs an empty system. */
    private static final class Inserts extends Workload {
        private final Library library;
        private final LongUnaryOperator keyOf;
        private Library.Keyed timers;
        private boolean used;

        Inserts(Library library, long keys, LongUnaryOperator keyOf) {
            super(keys);
            this.library = library;
            this.keyOf = keyOf;
            timers = library.keyed(false);
        }

        @Override
        int cases() {
            return 2;
        }

        @Override
        long warmUpAmount() {
            return 0;
        }

        @Override
        Library.Timers timers() {
            return timers;
        }

        @Override
        double[] round(int which, long amount, long seed) throws Exception {
            if (used) {
                timers.close();
                timers = library.keyed(false);
            }
            used = true;
            int threads = which + 1;
            long each = keys / threads;
            Library.Keyed into = timers;
            long longest = 0;
            for (long nanos :
                    producers(
                            into,
                            threads,
                            number -> insert(into, number * each, each, seed ^ (number << 32)))) {
                longest = Math.max(longest, nanos);
            }
            filled(into, each * threads);
            return new double[] {tookNanos / 1e9, longest / 1e6};
        }

        private long insert(Library.Keyed timers, long first, long count, long seed) {
            Rng rng = new Rng(seed);
            long longest = 0;
            long before = System.nanoTime();
            for (long number = first; number < first + count; number++) {
                timers.start(keyOf.applyAsLong(number), rng.between(60 * MINUTE, 120 * MINUTE));
                long after = System.nanoTime();
                longest = Math.max(longest, after - before);
                before = after;
            }
            return longest;
        }
    }

    /** Warms the JIT up: rounds of every case on systems that are thrown away, for so long in all. */
    static void warmUp(Library library, String name, long keys, long millis) throws Exception {
        if (millis == 0) {
            return;
        }
        long end = System.nanoTime() + millis * MILLI;
        Workload throwaway = open(library, name, Math.min(keys, 20_000), true);
        throwaway.fill();
        for (long seed = 1; System.nanoTime() - end < 0; seed++) {
            throwaway.round((int) (seed % throwaway.cases()), throwaway.warmUpAmount(), seed);
        }
        throwaway.timers().close();
        // What it left behind is not to be collected while something is measured.
        TimeUnit.MILLISECONDS.sleep(50);
        System.gc();
    }
}
