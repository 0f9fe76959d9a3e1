import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Arguments: bootstrap servers, source, target, group, transactional id, records. Copies the records in upper case.
 * The first attempt of the first batch is aborted and its records are read again.
 */
public class ExactlyOnceCopy {
    public static void main(String[] args) {
        Properties in = new Properties();
        in.put("bootstrap.servers", args[0]);
        in.put("group.id", args[3]);
        in.put("auto.offset.reset", "earliest");
        in.put("enable.auto.commit", "false");
        in.put("isolation.level", "read_committed");
        in.put("key.deserializer", StringDeserializer.class.getName());
        in.put("value.deserializer", StringDeserializer.class.getName());
        Properties out = new Properties();
        out.put("bootstrap.servers", args[0]);
        out.put("transactional.id", args[4]);
        out.put("key.serializer", StringSerializer.class.getName());
        out.put("value.serializer", StringSerializer.class.getName());
        int left = Integer.parseInt(args[5]);
        boolean aborted = false;
        long end = System.currentTimeMillis() + 60_000;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(in);
                KafkaProducer<String, String> producer = new KafkaProducer<>(out)) {
            producer.initTransactions();
            consumer.subscribe(List.of(args[1]));
            while (left > 0 && System.currentTimeMillis() < end) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(args[2], record.key(), record.value().toUpperCase()));
                    next.merge(new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1), (a, b) -> a.offset() > b.offset() ? a : b);
                }
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                if (!aborted) {
                    producer.flush();
                    producer.abortTransaction();
                    aborted = true;
                    for (TopicPartition partition : records.partitions()) {
                        consumer.seek(partition, records.records(partition).get(0).offset());
                    }
                    System.out.println("aborted " + records.count());
                    continue;
                }
                producer.commitTransaction();
                left -= records.count();
                System.out.println("copied " + records.count());
            }
            System.out.println("left " + left);
        }
    }
}
