package headrace.connect;

import io.apicurio.registry.utils.converter.avro.AvroData;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.connect.errors.ConnectException;

/**
 * Apicurio's converter for Avro, for a registry with Confluent's REST API.
 *
 * <pre>
 * value.converter                                = headrace.connect.AvroConverter
 * value.converter.apicurio.registry.url          = http://registry:8081
 * value.converter.apicurio.registry.auto-register = true     (default false: look schemas up only)
 * value.converter.replace.null.with.default      = false    (default true, as for Kafka's JsonConverter)
 * </pre>
 *
 * <p>With {@code replace.null.with.default=false} a null stays null in a column that has a default. Apicurio's converter
 * can do that, but has no key for it.
 */
public final class AvroConverter<T> extends io.apicurio.registry.utils.converter.AvroConverter<T> {
    private static final String REPLACES_NULL = "replace.null.with.default";

    @Override
    public void configure(Map<String, ?> configs, boolean isKey) {
        Map<String, Object> keys = new HashMap<>(configs);
        keys.putIfAbsent("apicurio.registry.schema-resolver", ConfluentSchemaResolver.class.getName());
        keys.putIfAbsent("apicurio.registry.as-confluent", "true");
        keys.putIfAbsent("apicurio.registry.headers.enabled", "false");
        super.configure(keys, isKey);
        Object replaces = keys.get(REPLACES_NULL);
        if (replaces != null && !Boolean.parseBoolean(replaces.toString())) {
            keepNulls();
        }
    }

    private void keepNulls() {
        try {
            Field data = io.apicurio.registry.utils.converter.AvroConverter.class.getDeclaredField("avroData");
            data.setAccessible(true);
            Field ignores = AvroData.class.getDeclaredField("ignoreDefaultForNullables");
            ignores.setAccessible(true);
            ignores.setBoolean(data.get(this), true);
        } catch (ReflectiveOperationException | RuntimeException error) {
            throw new ConnectException(
                    REPLACES_NULL + "=false: this version of Apicurio's converter is not known; use 2.6", error);
        }
    }
}
