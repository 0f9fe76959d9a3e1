import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Partitioner;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.serialization.StringSerializer;

/** Arguments: bootstrap servers, topic. Keys go to the partition of their first letter: a to 0, b to 1, others to 2. */
public class FirstLetterPartitioner implements Partitioner {
    @Override
    public int partition(String topic, Object key, byte[] keyBytes, Object value, byte[] valueBytes, Cluster cluster) {
        int letter = ((String) key).charAt(0) - 'a';
        return Math.min(letter, cluster.partitionCountForTopic(topic) - 1);
    }

    @Override
    public void close() { }

    @Override
    public void configure(Map<String, ?> configs) { }

    public static void main(String[] args) throws Exception {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[0]);
        props.put("key.serializer", StringSerializer.class.getName());
        props.put("value.serializer", StringSerializer.class.getName());
        props.put("partitioner.class", FirstLetterPartitioner.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(props)) {
            for (String key : new String[] {"apple", "banana", "cherry", "date"}) {
                System.out.println(key + " " + producer.send(new ProducerRecord<>(args[1], key, "fruit")).get().partition());
            }
        }
    }
}
