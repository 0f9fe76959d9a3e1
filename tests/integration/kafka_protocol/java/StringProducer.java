import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/** Arguments: bootstrap servers, topic, number of records. Prints "sent KEY PARTITION OFFSET" and the retries. */
public class StringProducer {
    public static void main(String[] args) throws Exception {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[0]);
        props.put("key.serializer", StringSerializer.class.getName());
        props.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(props)) {
            for (int i = 0; i < Integer.parseInt(args[2]); i++) {
                ProducerRecord<String, String> record = new ProducerRecord<>(args[1], "key-" + i, "value-" + i);
                record.headers().add("number", Integer.toString(i).getBytes());
                RecordMetadata written = producer.send(record).get();
                System.out.println("sent key-" + i + " " + written.partition() + " " + written.offset());
            }
            producer.metrics().forEach((name, metric) -> {
                if (name.name().equals("record-retry-total") && name.group().equals("producer-metrics")) {
                    System.out.println("record-retry-total " + metric.metricValue());
                }
            });
        }
    }
}
