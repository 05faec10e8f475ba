import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A peer of the benchmark program that runs in a JVM. It speaks the lines of `foreign/wire.rs` on its
 * standard input and output.
 *
 * <p>Arguments: the library's class, a workload (or what to check), the number of keys, and how many
 * milliseconds the warm-up takes.
 */
public final class Driver {
    private Driver() {}

    public static void main(String[] args) {
        try {
            Library library =
                    (Library) Class.forName(args[0]).getDeclaredConstructor().newInstance();
            switch (args[1]) {
                case "check-keys":
                    new Checked(new Named(library.keyed(false))).serve();
                    break;
                case "check-handles":
                    new Checked(new Numbered(library.handles())).serve();
                    break;
                default:
                    serve(library, args[1], Long.parseLong(args[2]), Long.parseLong(args[3]));
            }
        } catch (Throwable thrown) {
            thrown.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        // Taking millions of timers apart would only hold up the next one.
        Runtime.getRuntime().halt(0);
    }

    private static BufferedReader input() {
        return new BufferedReader(new InputStreamReader(System.in));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static final Pattern FIELD = Pattern.compile("\"(\\w+)\":\"?(\\w+)");

    /** The value of a field, which is a number or a plain word. */
    private static String field(String line, String name) {
        Matcher matcher = FIELD.matcher(line);
        while (matcher.find()) {
            if (matcher.group(1).equals(name)) {
                return matcher.group(2);
            }
        }
        throw new IllegalArgumentException("no " + name + " in " + line);
    }

    private static long number(String line, String name) {
        return Long.parseUnsignedLong(field(line, name));
    }

    /** Rounds of a workload, until the input ends. */
    private static void serve(Library library, String name, long keys, long warmUpMillis)
            throws Exception {
        Workload workload = Workload.open(library, name, keys, false);
        if (!workload.weighs()) {
            Workload.warmUp(library, name, keys, warmUpMillis);
            Recorder.takeLateness();
        }
        long began = System.nanoTime();
        double before = Workload.residentBytes();
        workload.fill();
        double bytes = Math.max(Workload.residentBytes() - before, 0);
        double seconds = (System.nanoTime() - began) / 1e9;
        say("{\"seconds\":" + seconds + ",\"bytes\":" + whole(bytes) + "}");
        BufferedReader input = input();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            int which = (int) number(line, "case");
            long fired = Recorder.firedSoFar();
            double[] figures = workload.round(which, number(line, "amount"), number(line, "seed"));
            StringBuilder reply = new StringBuilder("{\"figures\":[");
            for (int at = 0; at < figures.length; at++) {
                reply.append(at == 0 ? "" : ",");
                reply.append(Double.isNaN(figures[at]) ? "null" : figures[at]);
            }
            reply.append("],\"seconds\":").append(workload.tookNanos / 1e9);
            reply.append(",\"fired\":").append(Recorder.firedSoFar() - fired).append('}');
            say(reply.toString());
        }
    }

    private static String whole(double number) {
        return Double.isNaN(number) ? "null" : Long.toString((long) number);
    }

    /** A system as the tests see it. Answers are numbers; 1 stands for yes. */
    private interface Subject {
        long start(long key, long delayNanos);

        boolean stop(long key);

        boolean touch(long key, long delayNanos);

        Library.Timers timers();
    }

    private static final class Named implements Subject {
        private final Library.Keyed timers;

        Named(Library.Keyed timers) {
            this.timers = timers;
        }

        @Override
        public long start(long key, long delayNanos) {
            timers.start(key, delayNanos);
            return 0;
        }

        @Override
        public boolean stop(long key) {
            return timers.stop(key);
        }

        @Override
        public boolean touch(long key, long delayNanos) {
            return timers.touch(key, delayNanos);
        }

        @Override
        public Library.Timers timers() {
            return timers;
        }
    }

    /** Timers with handles: a start answers with a number that stands for the handle. */
    private static final class Numbered implements Subject {
        private final Library.Handles timers;
        private final Map<Long, Object> timeouts = new ConcurrentHashMap<>();
        private final AtomicLong next = new AtomicLong();

        Numbered(Library.Handles timers) {
            this.timers = timers;
        }

        @Override
        public long start(long value, long delayNanos) {
            long number = next.getAndIncrement();
            timeouts.put(number, timers.start(value, delayNanos));
            return number;
        }

        @Override
        public boolean stop(long number) {
            return timers.stop(timeouts.remove(number));
        }

        @Override
        public boolean touch(long number, long delayNanos) {
            throw new UnsupportedOperationException("a handle is not touched");
        }

        @Override
        public Library.Timers timers() {
            return timers;
        }
    }

    /** Single calls, for the tests of the benchmark program. Each lane has a thread of its own. */
    private static final class Checked {
        private final Subject subject;
        private final Map<Long, ExecutorService> lanes = new ConcurrentHashMap<>();

        Checked(Subject subject) {
            this.subject = subject;
        }

        void serve() throws Exception {
            // On Linux this is the clock of Rust's `Instant`.
            Recorder.listen(
                    value -> {
                        long now = System.nanoTime();
                        say("{\"fired\":" + value + ",\"at_ns\":" + now + "}");
                    });
            BufferedReader input = input();
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String call = line;
                long lane = number(line, "lane");
                lanes.computeIfAbsent(lane, absent -> Executors.newSingleThreadExecutor())
                        .execute(() -> answer(lane, call));
            }
        }

        private void answer(long lane, String line) {
            try {
                say("{\"lane\":" + lane + ",\"answer\":" + call(line) + "}");
            } catch (Throwable thrown) {
                thrown.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }

        private long call(String line) {
            long key = number(line, "key");
            long delay = number(line, "delay_ns");
            switch (field(line, "do")) {
                case "start":
                    return subject.start(key, delay);
                case "stop":
                    return subject.stop(key) ? 1 : 0;
                case "touch":
                    return subject.touch(key, delay) ? 1 : 0;
                case "pending":
                    return subject.timers().pending();
                case "settle":
                    subject.timers().settle();
                    return 0;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
    }
}
