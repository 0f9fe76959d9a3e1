import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Arguments: bootstrap servers, topic. Reads the topic to its ends with each isolation level, without a group. */
public class CopyReader {
    public static void main(String[] args) {
        for (String level : List.of("read_committed", "read_uncommitted")) {
            Properties props = new Properties();
            props.put("bootstrap.servers", args[0]);
            props.put("isolation.level", level);
            props.put("key.deserializer", StringDeserializer.class.getName());
            props.put("value.deserializer", StringDeserializer.class.getName());
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(props)) {
                List<TopicPartition> partitions = consumer.partitionsFor(args[1]).stream()
                    .map(one -> new TopicPartition(one.topic(), one.partition())).collect(Collectors.toList());
                consumer.assign(partitions);
                consumer.seekToBeginning(partitions);
                Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
                long end = System.currentTimeMillis() + 60_000;
                while (ends.entrySet().stream().anyMatch(one -> consumer.position(one.getKey()) < one.getValue())) {
                    if (System.currentTimeMillis() > end) {
                        throw new IllegalStateException("the end offsets were not reached: " + ends);
                    }
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                        System.out.println(level + " " + record.key() + " " + record.value());
                    }
                }
            }
        }
    }
}
