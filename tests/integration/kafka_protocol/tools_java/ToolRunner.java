import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs main methods of Kafka's tools one after another in one JVM. Each line of standard input is one run: the class,
 * the text of its standard input, and its arguments, separated by U+001F (line breaks as U+001E). The answer is the
 * exit code on a line, the text that the tool printed, and U+001D.
 */
public class ToolRunner {
    static final class Exited extends RuntimeException {
        Exited() {
            super("exit", null, false, false);
        }

        @Override
        public void printStackTrace(PrintStream out) { }
    }

    /** The first code of the running tool: some tools catch the exception of their own exit, and exit again with 1. */
    private static volatile Integer exit;

    private static void exit(int code) {
        if (exit == null) {
            exit = code;
        }
        throw new Exited();
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        InputStream commands = System.in;
        PrintStream errors = System.err;
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        // ConsoleProducer and VerifiableProducer close their producer, and so flush it, in a shutdown hook.
        List<Runnable> hooks = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        BufferedReader lines = new BufferedReader(new InputStreamReader(commands, "UTF-8"));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split("\u001f", -1);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(printed, true, "UTF-8");
            System.setOut(out);
            System.setErr(out);
            System.setIn(new ByteArrayInputStream(words[1].replace('\u001e', '\n').getBytes("UTF-8")));
            exit = null;
            int code = 0;
            try {
                Class.forName(words[0]).getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(words, 2, words.length));
            } catch (InvocationTargetException e) {
                if (!(e.getCause() instanceof Exited)) {
                    code = 1;
                    e.getCause().printStackTrace(out);
                }
            }
            hooks.forEach(Runnable::run);
            hooks.clear();
            code = exit == null ? code : exit;
            out.flush();
            System.setErr(errors);
            answers.println(code);
            answers.print(printed.toString("UTF-8"));
            answers.print("\u001d\n");
            answers.flush();
        }
    }
}
