import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;

/** What the threads of this process have used so far. */
final class Cpu {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private Cpu() {}

    /** CPU time of all threads except the calling one; those of the JIT and the collector are among them. */
    static double ofOthersNanos() {
        return SYSTEM.getProcessCpuTime()
                - ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    /** Voluntary context switches of all threads. NaN where the platform does not say. */
    static double switches() {
        long switches = 0;
        try (DirectoryStream<Path> threads = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path thread : threads) {
                for (String line : Files.readAllLines(thread.resolve("status"))) {
                    if (line.startsWith("voluntary_ctxt_switches:")) {
                        switches += Long.parseLong(line.substring(line.indexOf(':') + 1).trim());
                    }
                }
            }
            return switches;
        } catch (IOException elsewhere) {
            return Double.NaN;
        }
    }
}
