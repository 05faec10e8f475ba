/** A timer library, as the workloads use it. One JVM loads one of them, so HotSpot can inline its calls. */
interface Library {
    /** Empty, with its threads. Some tasks block for long if `mayBlock` is set. */
    Keyed keyed(boolean mayBlock);

    Handles handles();

    interface Timers {
        /** Number of pending timers. */
        long pending();

        /** Waits until everything that calls left to other threads is done. */
        void settle();

        /** Ends the threads of a system that was only there for the warm-up. */
        void close();
    }

    /** The caller knows a key and nothing else. What fires calls {@link Recorder#fired} with its key. */
    interface Keyed extends Timers {
        /** Arms the timer of `key` and replaces a pending one. */
        void start(long key, long delayNanos);

        /** Whether there was one. */
        boolean stop(long key);

        /** Moves the timer of `key` to the delay from now. Whether there was one. */
        boolean touch(long key, long delayNanos);
    }

    /** The caller keeps what the library returned. */
    interface Handles extends Timers {
        Object start(long value, long delayNanos);

        /** Whether it had not fired. */
        boolean stop(Object timeout);
    }
}
