import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;

/** Joins views and clicks of the same key within ten seconds. Arguments: as WordCount, with two topics to read. */
public final class WindowedJoin {
    public static void main(String[] args) {
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, String> strings = Consumed.with(Serdes.String(), Serdes.String());
        KStream<String, String> views = builder.stream(args[3], strings);
        KStream<String, String> clicks = builder.stream(args[4], strings);
        views.join(
                clicks,
                (view, click) -> view + "+" + click,
                JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(10), Duration.ofHours(1)),
                StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()))
            .to(args[5], Produced.with(Serdes.String(), Serdes.String()));
        Application.run(builder, args);
    }
}
