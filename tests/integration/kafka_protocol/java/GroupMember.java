import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a group until the standard input closes. Arguments: bootstrap servers, topic, group, then properties
 * NAME=VALUE. client_events.py says what it prints; "owned" lists the member's partitions after they have changed.
 */
public class GroupMember {
    public static void main(String[] args) {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[0]);
        props.put("group.id", args[2]);
        props.put("auto.offset.reset", "earliest");
        props.put("enable.auto.commit", "false");
        props.put("key.deserializer", StringDeserializer.class.getName());
        props.put("value.deserializer", StringDeserializer.class.getName());
        for (int i = 3; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            props.put(pair[0], pair[1]);
        }
        AtomicBoolean closed = new AtomicBoolean();
        Thread waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                }
            } catch (IOException e) {
                // the same as the end
            }
            closed.set(true);
        });
        waiting.setDaemon(true);
        waiting.start();
        String owned = "";
        try (KafkaConsumer<String, String> member = new KafkaConsumer<>(props)) {
            member.subscribe(List.of(args[1]));
            while (!closed.get()) {
                ConsumerRecords<String, String> records = member.poll(Duration.ofMillis(100));
                for (ConsumerRecord<String, String> record : records) {
                    print("read " + now() + " " + record.partition() + " " + record.offset() + " " + record.key() + " "
                        + record.value() + " " + new String(record.headers().lastHeader("number").value()));
                }
                if (!records.isEmpty()) {
                    commit(member, records);
                }
                String owns = "owned";
                for (TopicPartition partition : member.assignment()) {
                    owns += " " + partition.partition();
                }
                if (!owns.equals(owned)) {
                    owned = owns;
                    print(owned);
                }
            }
        }
    }

    private static void commit(KafkaConsumer<String, String> member, ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            next.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        try {
            member.commitSync(next);
            next.forEach((partition, offset) ->
                print("committed " + now() + " " + partition.partition() + " " + offset.offset()));
        } catch (CommitFailedException | RebalanceInProgressException e) {
            print("refused " + e); // they are committed with the next ones, or another member reads them again
        }
    }

    private static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    private static void print(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
