import java.io.File;
import org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

/** What Kafka's own readers make of the small files of a log directory: arguments are its path and a partition's name. */
public class ReadCheckpoints {
    public static void main(String[] arguments) throws Exception {
        LogDirFailureChannel failures = new LogDirFailureChannel(1);
        String root = arguments[0], partition = root + "/" + arguments[1];
        for (String name : new String[] {"recovery-point-offset", "replication-offset", "log-start-offset"}) {
            System.out.println(name + " " + new OffsetCheckpointFile(new File(root, name + "-checkpoint"), failures).read());
        }
        System.out.println("epochs " + new LeaderEpochCheckpointFile(new File(partition, "leader-epoch-checkpoint"), failures).read());
        System.out.println("id " + new PartitionMetadataFile(new File(partition, "partition.metadata"), failures).read().topicId());
        System.out.println("stop " + new CleanShutdownFileHandler(root).read());
    }
}
