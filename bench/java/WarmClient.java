import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.ConsumerPerformance;
import org.apache.kafka.tools.ProducerPerformance;

/**
 * Runs Kafka's own tools and our drivers, one after the other in one JVM, so that their code stays compiled. Each line
 * of standard input is a tool and its arguments, separated by tabs; after each a line "done" or "failed WHY" is printed.
 *
 * <p>usage: java -cp 'CLASSES:JARS/*' WarmClient
 */
public class WarmClient {
    public static void main(String[] none) throws Exception {
        // The tools exit the process on an error; here only the tool ends.
        Exit.setExitProcedure((status, message) -> {
            throw new IllegalStateException("exit " + status + (message == null ? "" : ": " + message));
        });
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split("\t");
            String end = "done";
            try {
                run(words[0], Arrays.copyOfRange(words, 1, words.length));
            } catch (Throwable failure) {
                failure.printStackTrace();
                end = "failed " + failure.toString().replace('\n', ' ');
            }
            System.out.println();
            System.out.println(end);
            System.out.flush();
        }
        System.exit(0); // ends non-daemon threads of a failed tool
    }

    static void run(String tool, String[] arguments) throws Exception {
        switch (tool) {
            case "producer-perf" -> ProducerPerformance.main(arguments);
            case "consumer-perf" -> ConsumerPerformance.main(arguments);
            case "sync-producers" -> SyncProducers.main(arguments);
            case "end-to-end" -> EndToEnd.main(arguments);
            case "transactions" -> Transactions.main(arguments);
            default -> throw new IllegalArgumentException("no tool: " + tool);
        }
    }
}
