import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Arguments: bootstrap servers, topic, group, number of records to read, then properties NAME=VALUE. */
public class GroupConsumer {
    public static void main(String[] args) {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[0]);
        props.put("group.id", args[2]);
        props.put("auto.offset.reset", "earliest");
        props.put("enable.auto.commit", "false");
        props.put("key.deserializer", StringDeserializer.class.getName());
        props.put("value.deserializer", StringDeserializer.class.getName());
        for (int i = 4; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            props.put(pair[0], pair[1]);
        }
        long end = System.currentTimeMillis() + 60_000;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(props)) {
            consumer.subscribe(List.of(args[1]));
            int left = Integer.parseInt(args[3]);
            while (left > 0 && System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println("read " + record.key() + " " + record.value() + " " + record.partition() + " "
                        + record.offset() + " " + new String(record.headers().lastHeader("number").value()));
                    left--;
                }
            }
            consumer.commitSync();
            consumer.committed(consumer.assignment()).forEach((partition, offset) ->
                System.out.println("committed " + partition + " " + (offset == null ? -1 : offset.offset())));
            System.out.println("left " + left);
        }
    }
}
