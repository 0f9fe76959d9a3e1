import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

/** Arguments: bootstrap servers, topic. Creates the topic with configs, describes it, increases its partitions. */
public class TopicAdmin {
    public static void main(String[] args) throws Exception {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[0]);
        String topic = args[1];
        try (Admin admin = Admin.create(props)) {
            NewTopic wanted = new NewTopic(topic, 3, (short) 3)
                .configs(Map.of("retention.ms", "86400000", "min.insync.replicas", "2", "cleanup.policy", "delete"));
            admin.createTopics(List.of(wanted)).all().get();
            System.out.println("listed " + admin.listTopics().names().get().contains(topic));
            describe(admin, topic);
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            admin.describeConfigs(List.of(resource)).all().get().get(resource).entries().stream()
                .filter(entry -> !entry.isDefault())
                .sorted((a, b) -> a.name().compareTo(b.name()))
                .forEach(entry -> System.out.println("config " + entry.name() + "=" + entry.value()));
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(6))).all().get();
            describe(admin, topic);
            System.out.println("nodes " + admin.describeCluster().nodes().get().size());
        }
    }

    private static void describe(Admin admin, String topic) throws Exception {
        TopicDescription description = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        System.out.println("partitions " + description.partitions().size());
        for (TopicPartitionInfo partition : description.partitions()) {
            System.out.println("partition " + partition.partition() + " leader " + (partition.leader() != null)
                + " replicas " + partition.replicas().size() + " isr " + partition.isr().size());
        }
    }
}
