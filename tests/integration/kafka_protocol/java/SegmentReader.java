import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Arguments: the path of a segment (….log) and an offset. Searches the segment's index for the largest entry at or
 * before the offset (entries of 8 bytes: relative offset, position), then walks the batches from there. Prints the
 * base offset and the record count of the batch that has the offset.
 */
public class SegmentReader {
    public static void main(String[] args) throws Exception {
        Path log = Path.of(args[0]);
        long target = Long.parseLong(args[1]);
        String name = log.getFileName().toString().replace(".log", "");
        long base = Long.parseLong(name);
        int position = 0;
        try (FileChannel index = FileChannel.open(log.resolveSibling(name + ".index"), StandardOpenOption.READ)) {
            ByteBuffer entries = index.map(FileChannel.MapMode.READ_ONLY, 0, index.size());
            int low = 0;
            int high = (int) (index.size() / 8) - 1;
            while (high >= 0 && entries.getInt(high * 8) == 0 && entries.getInt(high * 8 + 4) == 0) {
                high--; // an active segment's index may be preallocated with zeros
            }
            System.out.println("entries " + (high + 1));
            while (low <= high) {
                int middle = (low + high) >>> 1;
                if (base + entries.getInt(middle * 8) <= target) {
                    position = entries.getInt(middle * 8 + 4);
                    low = middle + 1;
                } else {
                    high = middle - 1;
                }
            }
        }
        System.out.println("position " + position);
        try (FileChannel channel = FileChannel.open(log, StandardOpenOption.READ)) {
            ByteBuffer header = ByteBuffer.allocate(61);
            while (position + 61 <= channel.size()) {
                header.clear();
                channel.read(header, position);
                long first = header.getLong(0);
                long last = first + header.getInt(23);
                if (last >= target) {
                    System.out.println("batch " + first + " " + header.getInt(57) + " magic " + header.get(16));
                    return;
                }
                position += 12 + header.getInt(8);
            }
            System.out.println("not found");
        }
    }
}
