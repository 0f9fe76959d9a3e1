import java.util.Arrays;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * N producers with a connection each and one unbatched record of 100 random bytes in flight each; prints one JSON
 * object. The counterpart of bench/connections.py.
 *
 * <p>usage: java -cp 'JARS/*' SyncProducers.java BOOTSTRAP TOPIC PRODUCERS SECONDS ACKS
 */
public class SyncProducers {
    static final int LATENCIES_MAX = 1_000_000;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int producers = Integer.parseInt(arguments[2]);
        double seconds = Double.parseDouble(arguments[3]);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("acks", arguments[4]);
        properties.put("linger.ms", "0");

        CountDownLatch ready = new CountDownLatch(producers);
        CountDownLatch go = new CountDownLatch(1);
        long[][] latencies = new long[producers][];
        Thread[] threads = new Thread[producers];
        for (int i = 0; i < producers; i++) {
            int number = i;
            threads[i] = new Thread(() -> {
                byte[] value = new byte[100];
                new Random(number).nextBytes(value);
                var serializer = new ByteArraySerializer();
                try (var producer = new KafkaProducer<byte[], byte[]>(properties, serializer, serializer)) {
                    producer.send(new ProducerRecord<>(topic, value)).get();
                    ready.countDown();
                    go.await();
                    long[] seen = new long[LATENCIES_MAX / producers + 1000];
                    int count = 0;
                    long end = System.nanoTime() + (long) (seconds * 1e9);
                    long before = System.nanoTime();
                    while (before < end && count < seen.length) {
                        producer.send(new ProducerRecord<>(topic, value)).get();
                        long after = System.nanoTime();
                        seen[count++] = after - before;
                        before = after;
                    }
                    latencies[number] = Arrays.copyOf(seen, count);
                } catch (Exception failure) {
                    failure.printStackTrace();
                    System.exit(1);
                }
            });
            threads[i].start();
        }
        ready.await();
        long started = System.nanoTime();
        go.countDown();
        for (Thread thread : threads) thread.join();
        double took = (System.nanoTime() - started) / 1e9;
        long[] all = Arrays.stream(latencies).flatMapToLong(Arrays::stream).sorted().toArray();
        // Compute the rate over the requested time, because closing two hundred producers takes additional time.
        System.out.printf(
            "{\"requests\": %d, \"seconds\": %.3f, \"requests_per_s\": %.1f, \"latency_ms\": {\"p50\": %.3f, \"p99\": %.3f}}%n",
            all.length, took, all.length / seconds, all[all.length / 2] / 1e6, all[(int) (all.length * 0.99)] / 1e6);
    }
}
