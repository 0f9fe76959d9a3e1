package headrace.connect;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.apicurio.registry.resolver.ParsedSchema;
import io.apicurio.registry.resolver.ParsedSchemaImpl;
import io.apicurio.registry.resolver.SchemaLookupResult;
import io.apicurio.registry.resolver.SchemaParser;
import io.apicurio.registry.resolver.SchemaResolver;
import io.apicurio.registry.resolver.data.Record;
import io.apicurio.registry.resolver.strategy.ArtifactReference;
import io.apicurio.registry.resolver.strategy.ArtifactReferenceResolverStrategy;
import io.apicurio.registry.rest.client.RegistryClient;
import io.apicurio.registry.serde.data.KafkaSerdeMetadata;
import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.errors.SerializationException;

/**
 * Lets Apicurio's serializers and Connect converters use a registry with Confluent's REST API, such as Headrace's.
 *
 * <p>Apicurio's own resolver speaks Apicurio's API only. This one registers or looks up a schema under the subject
 * {@code TOPIC-key} or {@code TOPIC-value}, and reads schemas by their ids. Keys of the converter:
 *
 * <pre>
 * apicurio.registry.schema-resolver = headrace.connect.ConfluentSchemaResolver
 * apicurio.registry.url             = http://registry:8081, or several addresses, separated by commas
 * apicurio.registry.as-confluent    = true     (ids of 4 bytes)
 * apicurio.registry.headers.enabled = false    (the id is in the value, not in a header)
 * apicurio.registry.auto-register   = true     (default false: look schemas up only)
 * </pre>
 *
 * <p>Schemas with references are refused. Ids and schemas are cached for the life of the resolver.
 */
public final class ConfluentSchemaResolver<S, T> implements SchemaResolver<S, T> {
    private static final Duration TIMEOUT = Duration.ofSeconds(10);
    private static final String TYPE = "application/vnd.schemaregistry.v1+json";
    /** Maximum number of cached schemas; above it the cache is emptied. */
    private static final int CACHED_MAX = 10_000;

    private final ObjectMapper json = new ObjectMapper();
    private final HttpClient http = HttpClient.newBuilder().connectTimeout(TIMEOUT).build();
    private final Map<Integer, SchemaLookupResult<S>> byId = new ConcurrentHashMap<>();
    private final Map<Subject<S>, SchemaLookupResult<S>> bySchema = new ConcurrentHashMap<>();
    private String[] urls = {};
    private boolean registers;
    private SchemaParser<S, T> parser;

    private record Subject<S>(String name, S schema) {}

    @Override
    public void configure(Map<String, ?> configs, SchemaParser<S, T> schemaParser) {
        Object url = configs.get("apicurio.registry.url");
        if (url == null || url.toString().isBlank()) {
            throw new IllegalArgumentException("apicurio.registry.url is not set: name the registry, http://host:port");
        }
        urls = url.toString().trim().split("\\s*,\\s*");
        Object register = configs.get("apicurio.registry.auto-register");
        registers = register != null && Boolean.parseBoolean(register.toString());
        parser = schemaParser;
    }

    @Override
    public void setClient(RegistryClient client) {
        // Apicurio's client speaks Apicurio's API, which this resolver does not use.
    }

    @Override
    public void setArtifactResolverStrategy(ArtifactReferenceResolverStrategy<S, T> strategy) {
        // The subject always follows from the topic.
    }

    @Override
    public SchemaParser<S, T> getSchemaParser() {
        return parser;
    }

    @Override
    public SchemaLookupResult<S> resolveSchema(Record<T> data) {
        KafkaSerdeMetadata metadata = (KafkaSerdeMetadata) data.metadata();
        String subject = metadata.getTopic() + (metadata.isKey() ? "-key" : "-value");
        // true: the schema is whole; the parser would make a reference of each named type otherwise
        ParsedSchema<S> schema = parser.getSchemaFromData(data, true);
        Subject<S> place = new Subject<>(subject, schema.getParsedSchema());
        SchemaLookupResult<S> known = bySchema.get(place);
        if (known != null) {
            return known;
        }
        String text = new String(schema.getRawSchema(), StandardCharsets.UTF_8);
        String path = "/subjects/" + URLEncoder.encode(subject, StandardCharsets.UTF_8).replace("+", "%20");
        String body = json.createObjectNode().put("schema", text).put("schemaType", parser.artifactType()).toString();
        JsonNode answer = ask("POST", registers ? path + "/versions" : path, body);
        SchemaLookupResult<S> found = result(answer.path("id").asInt(-1), schema);
        if (bySchema.size() >= CACHED_MAX) {
            bySchema.clear();
        }
        bySchema.put(place, found);
        return found;
    }

    @Override
    public SchemaLookupResult<S> resolveSchemaByArtifactReference(ArtifactReference reference) {
        Long given = reference.getContentId() != null ? reference.getContentId() : reference.getGlobalId();
        if (given == null) {
            throw new SerializationException("the record has no schema id: set apicurio.registry.headers.enabled=false");
        }
        int id = given.intValue();
        SchemaLookupResult<S> known = byId.get(id);
        if (known != null) {
            return known;
        }
        JsonNode answer = ask("GET", "/schemas/ids/" + id, null);
        if (answer.path("references").size() > 0) {
            throw new SerializationException("schema id " + id + " has references, which this resolver does not read");
        }
        byte[] raw = answer.path("schema").asText().getBytes(StandardCharsets.UTF_8);
        ParsedSchemaImpl<S> schema = new ParsedSchemaImpl<>();
        schema.setParsedSchema(parser.parseSchema(raw, Map.of())).setRawSchema(raw);
        SchemaLookupResult<S> found = result(id, schema);
        if (byId.size() >= CACHED_MAX) {
            byId.clear();
        }
        byId.put(id, found);
        return found;
    }

    private SchemaLookupResult<S> result(int id, ParsedSchema<S> schema) {
        if (id < 0) {
            throw new SerializationException("the registry's answer has no schema id");
        }
        return SchemaLookupResult.<S>builder().globalId(id).contentId(id).parsedSchema(schema).build();
    }

    /** Asks the addresses in turn, until one answers. */
    private JsonNode ask(String method, String path, String body) {
        SerializationException failure = new SerializationException("no registry answers: apicurio.registry.url");
        for (String url : urls) {
            HttpRequest.BodyPublisher publisher =
                    body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(body);
            HttpRequest request = HttpRequest.newBuilder(URI.create(url.replaceAll("/+$", "") + path))
                    .timeout(TIMEOUT).header("Content-Type", TYPE).header("Accept", TYPE).method(method, publisher).build();
            try {
                HttpResponse<String> response = http.send(request, HttpResponse.BodyHandlers.ofString());
                if (response.statusCode() == 200) {
                    return json.readTree(response.body());
                }
                failure = new SerializationException(
                        method + " " + url + path + ": status " + response.statusCode() + ": " + response.body());
                if (response.statusCode() < 500 && response.statusCode() != 429) {
                    throw failure; // another replica would give the same answer
                }
            } catch (IOException error) {
                failure = new SerializationException(method + " " + url + path + ": " + error, error);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new SerializationException(error);
            }
        }
        throw failure;
    }

    @Override
    public void reset() {
        byId.clear();
        bySchema.clear();
    }

    @Override
    public void close() {
        reset();
    }
}
