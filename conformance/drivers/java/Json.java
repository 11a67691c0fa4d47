// The lines of the protocol, for both Java drivers.
import java.util.LinkedHashMap;
import java.util.Map;

/** Flat objects of strings, numbers and truth values: all that the protocol has. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Map<String, String> parse(String line) {
        Json json = new Json(line.trim());
        Map<String, String> fields = new LinkedHashMap<>();
        json.at = 1;
        while (json.text.charAt(json.at) != '}') {
            json.skip(", ");
            String name = json.string();
            json.skip(": ");
            fields.put(name, json.text.charAt(json.at) == '"' ? json.string() : json.word());
            json.skip(" ");
        }
        return fields;
    }

    private void skip(String characters) {
        while (characters.indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private String word() {
        int from = at;
        while (",} ".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        return text.substring(from, at);
    }

    private String string() {
        StringBuilder value = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            if (text.charAt(at) != '\\') {
                value.append(text.charAt(at));
                continue;
            }
            at++;
            switch (text.charAt(at)) {
                case 'n': value.append('\n'); break;
                case 't': value.append('\t'); break;
                default: value.append(text.charAt(at));
            }
        }
        at++;
        return value.toString();
    }

    static String write(Map<String, Object> fields) {
        StringBuilder json = new StringBuilder("{");
        fields.forEach((name, value) -> {
            json.append(json.length() > 1 ? ", " : "").append('"').append(name).append("\": ");
            if (value instanceof String) {
                json.append('"').append(((String) value).replace("\\", "\\\\").replace("\"", "\\\"")
                    .replace("\n", "\\n").replace("\t", "\\t")).append('"');
            } else {
                json.append(value);
            }
        });
        return json.append('}').toString();
    }
}
