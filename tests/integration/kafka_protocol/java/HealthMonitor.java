import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;

/** Arguments: bootstrap servers, group. Counts offline and under-replicated partitions and prints the group's lag. */
public class HealthMonitor {
    public static void main(String[] args) throws Exception {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[0]);
        try (Admin admin = Admin.create(props)) {
            int offline = 0;
            int underReplicated = 0;
            for (TopicDescription topic
                    : admin.describeTopics(admin.listTopics().names().get()).allTopicNames().get().values()) {
                for (TopicPartitionInfo partition : topic.partitions()) {
                    offline += partition.leader() == null ? 1 : 0;
                    underReplicated += partition.isr().size() < partition.replicas().size() ? 1 : 0;
                }
            }
            System.out.println("offline " + offline);
            System.out.println("under-replicated " + underReplicated);
            Map<TopicPartition, OffsetAndMetadata> committed =
                admin.listConsumerGroupOffsets(args[1]).partitionsToOffsetAndMetadata().get();
            Map<TopicPartition, OffsetSpec> wanted = new HashMap<>();
            committed.keySet().forEach(partition -> wanted.put(partition, OffsetSpec.latest()));
            Map<TopicPartition, ListOffsetsResultInfo> ends = admin.listOffsets(wanted).all().get();
            long lag = 0;
            for (Map.Entry<TopicPartition, OffsetAndMetadata> one : committed.entrySet()) {
                lag += ends.get(one.getKey()).offset() - one.getValue().offset();
            }
            System.out.println("partitions " + committed.size());
            System.out.println("lag " + lag);
            System.out.println("state " + admin.describeConsumerGroups(List.of(args[1])).all().get().get(args[1]).state());
        }
    }
}
