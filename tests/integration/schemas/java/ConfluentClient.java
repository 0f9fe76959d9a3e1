import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.CompatibilityLevel;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.ParsedSchemaHolder;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.SimpleParsedSchemaHolder;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.SchemaMetadata;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.SchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.avro.shaded.org.apache.avro.Schema;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumReader;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumWriter;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericRecord;
import org.apache.flink.avro.shaded.org.apache.avro.io.DecoderFactory;
import org.apache.flink.avro.shaded.org.apache.avro.io.Encoder;
import org.apache.flink.avro.shaded.org.apache.avro.io.EncoderFactory;
import org.apache.flink.formats.avro.registry.confluent.ConfluentRegistryAvroDeserializationSchema;
import org.apache.flink.formats.avro.registry.confluent.ConfluentRegistryAvroSerializationSchema;

/**
 * Confluent's registry client and Flink's serializers, which are in one jar of Flink: ConfluentClient URL...
 *
 * <p>Reads a command from each line of stdin, a JSON object with the field {@code do}, and answers it with a line of
 * JSON: {@code {"result": ...}} or {@code {"error": CLASS, "status": N, "code": N, "message": TEXT}}.
 */
public final class ConfluentClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final String url;
    private final SchemaRegistryClient client;

    private ConfluentClient(List<String> urls) {
        url = String.join(",", urls);
        client = new CachedSchemaRegistryClient(urls, 1_000);
    }

    public static void main(String[] urls) throws IOException {
        ConfluentClient own = new ConfluentClient(List.of(urls));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = JSON.writeValueAsString(Map.of("result", own.done(JSON.readTree(line))));
            } catch (Exception error) {
                answer = JSON.writeValueAsString(failure(error));
            }
            System.out.println(Base64.getEncoder().encodeToString(answer.getBytes(StandardCharsets.UTF_8)));
        }
    }

    private Object done(JsonNode ask) throws Exception {
        String subject = ask.path("subject").asText();
        switch (ask.get("do").asText()) {
            case "subjects":
                return client.getAllSubjects();
            case "register":
                return client.register(subject, schema(ask));
            case "id":
                return client.getId(subject, schema(ask));
            case "version":
                return client.getVersion(subject, schema(ask));
            case "versions":
                return client.getAllVersions(subject);
            case "schema":
                return client.getSchemaById(ask.get("id").asInt()).canonicalString();
            case "latest":
                SchemaMetadata latest = client.getLatestSchemaMetadata(subject);
                return Map.of("id", latest.getId(), "version", latest.getVersion(), "schema", latest.getSchema());
            case "level":
                return client.updateCompatibility(subject, ask.get("level").asText());
            case "mode":
                return client.setMode(ask.get("mode").asText(), subject);
            case "reasons":
                return client.testCompatibilityVerbose(subject, schema(ask));
            case "delete":
                return client.deleteSubject(subject, ask.path("permanent").asBoolean());
            case "check":
                return check(ask);
            case "write":
                return written(subject, ask);
            case "read":
                return read(ask);
            default:
                throw new IllegalArgumentException(ask.toString());
        }
    }

    private static AvroSchema schema(JsonNode ask) {
        List<SchemaReference> references = new ArrayList<>();
        Map<String, String> texts = new java.util.HashMap<>();
        for (JsonNode each : ask.path("references")) {
            String name = each.get("name").asText();
            references.add(new SchemaReference(name, each.get("subject").asText(), each.get("version").asInt()));
            texts.put(name, each.get("schema").asText());
        }
        return new AvroSchema(ask.get("schema").asText(), references, texts, null);
    }

    /** Confluent's own verdict, without a registry: the reasons why a change is incompatible. */
    private static List<String> check(JsonNode ask) {
        List<ParsedSchemaHolder> earlier = new ArrayList<>();
        for (JsonNode each : ask.get("earlier")) {
            earlier.add(new SimpleParsedSchemaHolder(new AvroSchema(each.asText())));
        }
        return new AvroSchema(ask.get("schema").asText())
                .isCompatible(CompatibilityLevel.forName(ask.get("level").asText()), earlier);
    }

    private String written(String subject, JsonNode ask) throws IOException {
        Schema schema = new Schema.Parser().parse(ask.get("schema").asText());
        GenericRecord record = new GenericDatumReader<GenericRecord>(schema)
                .read(null, DecoderFactory.get().jsonDecoder(schema, ask.get("value").asText()));
        byte[] data = ConfluentRegistryAvroSerializationSchema.forGeneric(subject, schema, url).serialize(record);
        return Base64.getEncoder().encodeToString(data);
    }

    private String read(JsonNode ask) throws IOException {
        Schema schema = new Schema.Parser().parse(ask.get("schema").asText());
        byte[] data = Base64.getDecoder().decode(ask.get("data").asText());
        GenericRecord record = ConfluentRegistryAvroDeserializationSchema.forGeneric(schema, url).deserialize(data);
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        Encoder encoder = EncoderFactory.get().jsonEncoder(schema, text);
        new GenericDatumWriter<GenericRecord>(schema).write(record, encoder);
        encoder.flush();
        return text.toString(StandardCharsets.UTF_8);
    }

    private static Map<String, Object> failure(Throwable error) {
        Throwable cause = error;
        while (!(cause instanceof RestClientException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        int status = 0;
        int code = 0;
        if (cause instanceof RestClientException) {
            status = ((RestClientException) cause).getStatus();
            code = ((RestClientException) cause).getErrorCode();
        }
        String name = cause.getClass().getSimpleName();
        return Map.of("error", name, "status", status, "code", code, "message", String.valueOf(cause.getMessage()));
    }
}
