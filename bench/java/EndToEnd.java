import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * From send to received through one producer (linger 0) and one consumer of this process; prints one JSON object. The
 * counterpart of `headrace bench latency`: RATE records a second on a schedule, or with RATE 0 one record in flight.
 *
 * <p>usage: java -cp 'JARS/*' EndToEnd.java BOOTSTRAP TOPIC RATE SECONDS ACKS RECORD_BYTES
 */
public class EndToEnd {
    /** Not measured, so many records or so long: connections, sessions, the compiler. */
    static final int WARM_UP_MAX = 3_000;

    static final long WARM_UP_NS = 10_000_000_000L;

    static final long STALL_NS = 30_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        double rate = Double.parseDouble(arguments[2]);
        double seconds = Double.parseDouble(arguments[3]);
        int bytes = Math.max(8, Integer.parseInt(arguments[5]));
        Properties shared = new Properties();
        shared.put("bootstrap.servers", arguments[0]);
        Properties sending = new Properties();
        sending.putAll(shared);
        sending.put("acks", arguments[4]);
        sending.put("linger.ms", "0");
        Properties reading = new Properties();
        reading.putAll(shared);
        reading.put("enable.auto.commit", "false");

        int capacity = WARM_UP_MAX + (int) (rate > 0 ? rate * seconds : 20_000 * seconds);
        AtomicLongArray sent = new AtomicLongArray(capacity);
        AtomicLongArray received = new AtomicLongArray(capacity);
        byte[] padding = new byte[bytes];
        new Random(1).nextBytes(padding);
        var serializer = new ByteArraySerializer();
        var deserializer = new ByteArrayDeserializer();
        try (var producer = new KafkaProducer<>(sending, serializer, serializer);
                var consumer = new KafkaConsumer<>(reading, deserializer, deserializer)) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map((PartitionInfo each) -> new TopicPartition(topic, each.partition()))
                    .toList();
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            partitions.forEach(consumer::position);

            int[] arrived = {0};
            int warm = 0;
            for (long end = System.nanoTime() + WARM_UP_NS; warm < WARM_UP_MAX && System.nanoTime() < end; warm++) {
                send(producer, topic, padding, warm, sent);
                receive(consumer, received, arrived, warm + 1);
            }
            int first = warm;
            int count = first;
            if (rate == 0) {
                long end = System.nanoTime() + (long) (seconds * 1e9);
                while (System.nanoTime() < end && count < capacity) {
                    send(producer, topic, padding, count++, sent);
                    receive(consumer, received, arrived, count);
                }
            } else {
                count = first + (int) (rate * seconds);
                int last = count;
                Thread sender = new Thread(() -> {
                    long begun = System.nanoTime();
                    for (int number = first; number < last; number++) {
                        long due = begun + (long) ((number - first) * 1e9 / rate);
                        for (long left; (left = due - System.nanoTime()) > 0; ) LockSupport.parkNanos(left);
                        send(producer, topic, padding, number, sent);
                    }
                });
                sender.start();
                receive(consumer, received, arrived, count);
                sender.join();
            }
            long[] taken = new long[count - first];
            for (int number = first; number < count; number++) taken[number - first] = received.get(number) - sent.get(number);
            double took = (received.get(count - 1) - sent.get(first)) / 1e9;
            Arrays.sort(taken);
            System.out.printf(
                    "{\"records\": %d, \"records_per_s\": %.1f, \"latency_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"p999\": %.3f, \"max\": %.3f}}%n",
                    taken.length, taken.length / took, rank(taken, 0.5), rank(taken, 0.99), rank(taken, 0.999), rank(taken, 1.0));
        }
    }

    static double rank(long[] ordered, double share) {
        return ordered[Math.max(0, (int) Math.ceil(ordered.length * share) - 1)] / 1e6;
    }

    static void send(KafkaProducer<byte[], byte[]> producer, String topic, byte[] padding, int number, AtomicLongArray sent) {
        byte[] value = padding.clone();
        ByteBuffer.wrap(value).putLong(number);
        sent.set(number, System.nanoTime());
        producer.send(new ProducerRecord<>(topic, value));
    }

    static void receive(KafkaConsumer<byte[], byte[]> consumer, AtomicLongArray received, int[] arrived, int wanted) {
        long deadline = System.nanoTime() + STALL_NS;
        while (arrived[0] < wanted) {
            var records = consumer.poll(Duration.ofSeconds(1));
            long now = System.nanoTime();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                int number = (int) ByteBuffer.wrap(record.value()).getLong();
                if (received.get(number) != 0) throw new IllegalStateException("record " + number + " came twice");
                received.set(number, now);
                arrived[0]++;
            }
            if (!records.isEmpty()) deadline = now + STALL_NS;
            else if (now > deadline) throw new IllegalStateException("only " + arrived[0] + " of " + wanted + " records came");
        }
    }
}
