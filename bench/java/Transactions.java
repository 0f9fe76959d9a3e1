import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * N transactional producers, each with transactions in a row: of SIZE records of 100 random bytes, or of SIZE
 * milliseconds at full speed. Prints one JSON object; a latency is from begin to the end of commit. The counterpart of
 * bench/transactions_client.py.
 *
 * <p>usage: java -cp 'JARS/*' Transactions BOOTSTRAP TOPIC records|ms SIZE PRODUCERS SECONDS [KEY=VALUE...]
 */
public class Transactions {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        boolean isTimed = arguments[2].equals("ms");
        int size = Integer.parseInt(arguments[3]);
        int producers = Integer.parseInt(arguments[4]);
        double seconds = Double.parseDouble(arguments[5]);

        CountDownLatch ready = new CountDownLatch(producers);
        CountDownLatch go = new CountDownLatch(1);
        AtomicReference<Exception> failed = new AtomicReference<>();
        List<double[]> results = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < producers; i++) {
            int number = i;
            Properties properties = new Properties();
            properties.put("bootstrap.servers", arguments[0]);
            properties.put("acks", "all");
            properties.put("transactional.id", topic + "-" + number);
            for (String setting : Arrays.copyOfRange(arguments, 6, arguments.length)) {
                String[] words = setting.split("=", 2);
                properties.put(words[0], words[1]);
            }
            Thread thread = new Thread(() -> {
                byte[] value = new byte[100];
                new Random(number).nextBytes(value);
                var serializer = new ByteArraySerializer();
                try (var producer = new KafkaProducer<byte[], byte[]>(properties, serializer, serializer)) {
                    producer.initTransactions();
                    run(producer, topic, value, isTimed, size);
                    ready.countDown();
                    go.await();
                    long begun = System.nanoTime();
                    long end = begun + (long) (seconds * 1e9);
                    List<Double> latencies = new ArrayList<>();
                    long records = 0;
                    for (long before = begun; before < end; ) {
                        records += run(producer, topic, value, isTimed, size);
                        long after = System.nanoTime();
                        latencies.add((after - before) / 1e6);
                        before = after;
                    }
                    double took = (System.nanoTime() - begun) / 1e9;
                    synchronized (results) {
                        results.add(new double[] {records / took, latencies.size() / took});
                        for (double each : latencies) results.add(new double[] {each});
                    }
                } catch (Exception failure) {
                    failed.set(failure);
                    ready.countDown();
                }
            });
            threads.add(thread);
            thread.start();
        }
        ready.await();
        go.countDown();
        for (Thread thread : threads) thread.join();
        if (failed.get() != null) throw failed.get();
        double[] all = results.stream().filter(each -> each.length == 1).mapToDouble(each -> each[0]).sorted().toArray();
        double records = results.stream().filter(each -> each.length == 2).mapToDouble(each -> each[0]).sum();
        double transactions = results.stream().filter(each -> each.length == 2).mapToDouble(each -> each[1]).sum();
        System.out.printf(
            "{\"records_per_s\": %.1f, \"transactions_per_s\": %.2f, \"latency_ms\": {\"p50\": %.3f, \"p99\": %.3f}}%n",
            records, transactions, all[all.length / 2], all[(int) (all.length * 0.99)]);
    }

    static long run(KafkaProducer<byte[], byte[]> producer, String topic, byte[] value, boolean isTimed, int size) {
        producer.beginTransaction();
        long sent = 0;
        if (isTimed) {
            long end = System.nanoTime() + size * 1_000_000L;
            while (sent % 64 != 0 || System.nanoTime() < end) {
                producer.send(new ProducerRecord<>(topic, value));
                sent++;
            }
        } else {
            for (; sent < size; sent++) producer.send(new ProducerRecord<>(topic, value));
        }
        producer.commitTransaction();
        return sent;
    }
}
