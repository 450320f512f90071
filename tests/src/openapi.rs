//! Descriptions of an API in OpenAPI: its operations, bodies that they allow, and bodies that they do not.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// A field that no request has.
const SURPLUS: &str = "surplus";
/// A value of each kind of JSON. No field takes the number or the string in place of another kind.
const KINDS: [(&str, &str); 7] = [
    ("null", "null"),
    ("boolean", "true"),
    ("integer", "7"),
    ("string", "\"text\""),
    ("array", "[]"),
    ("array", "[[[]]]"),
    ("object", "{\"surplus\":{}}"),
];
/// Larger than any integer that a field can hold.
const TOO_LARGE: f64 = 1e300;

/// A document of OpenAPI 3.1.
#[derive(Debug)]
pub struct Description(Value);

/// One method of one path.
#[derive(Debug)]
pub struct Operation {
    /// In upper case.
    pub method: String,
    /// The path with a value for each parameter.
    pub path: String,
    /// The statuses that it may answer.
    pub statuses: Vec<u16>,
    body: Option<Value>,
    /// Whether a request needs a body.
    pub needs_body: bool,
}

/// A body that an operation does not allow.
#[derive(Clone, Debug)]
pub struct BadBody {
    /// The mistake in it.
    pub what: String,
    /// The body.
    pub body: Value,
    /// Text that the refusal must have.
    pub words: String,
    /// The fields that the refusal must list, if it lists any: those of the object with a field too many.
    pub fields: Option<BTreeSet<String>>,
}

impl Description {
    /// Reads a document.
    ///
    /// # Panics
    /// It is no JSON.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).expect("a description in JSON"))
    }

    /// Returns all operations.
    ///
    /// # Panics
    /// The document is no description.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        let paths = self.0["paths"].as_object().expect("paths");
        let of_path = |(path, methods): (&String, &Value)| {
            let methods = methods.as_object().expect("methods").clone();
            let path = path.replace("{id}", "one");
            let operation =
                move |(method, described): (String, Value)| self.operation(&method, &path, &described);
            methods
                .into_iter()
                .filter(|(method, _)| method != "parameters")
                .map(operation)
                .collect::<Vec<_>>()
        };
        paths.iter().flat_map(of_path).collect()
    }

    fn operation(&self, method: &str, path: &str, described: &Value) -> Operation {
        let body = described.get("requestBody").map(|body| self.resolved(body));
        let status = |status: &String| status.parse().expect("a status");
        Operation {
            method: method.to_uppercase(),
            path: path.to_owned(),
            statuses: described["responses"].as_object().expect("responses").keys().map(status).collect(),
            needs_body: body.as_ref().is_some_and(|body| body["required"] == true),
            body: body.map(|body| body["content"]["application/json"]["schema"].clone()),
        }
    }

    /// Returns a body that an operation allows, if it has any.
    #[must_use]
    pub fn good_body(&self, operation: &Operation) -> Option<Value> {
        operation.body.as_ref().map(|schema| self.sample(schema))
    }

    /// Returns bodies that an operation does not allow: each field of another kind, missing, of an unknown
    /// value or too large, and one field too many in each object.
    #[must_use]
    pub fn bad_bodies(&self, operation: &Operation) -> Vec<BadBody> {
        operation.body.as_ref().map_or_else(Vec::new, |schema| self.bad_values(schema, ""))
    }

    fn bad_values(&self, schema: &Value, name: &str) -> Vec<BadBody> {
        let schema = self.resolved(schema);
        let Some(kinds) = self.kinds(&schema) else { return Vec::new() };
        let is_allowed = |kind: &str| kinds.iter().any(|allowed| allowed == kind);
        let bad =
            |what: String, body, words: &str| BadBody { what, body, words: words.to_owned(), fields: None };
        let mut found = Vec::new();
        for (kind, value) in KINDS {
            let is_number = kind == "integer" && is_allowed("number");
            if !is_allowed(kind) && !is_number {
                found.push(bad(format!("{kind} as {name:?}"), serde_json::from_str(value).unwrap(), name));
            }
        }
        if is_allowed("integer") {
            found.push(bad(format!("too large {name:?}"), json!(TOO_LARGE), name));
        }
        if schema["enum"].is_array() {
            found.push(bad(format!("unknown {name:?}"), json!("unknown"), name));
        }
        let Some(fields) = schema["properties"].as_object() else { return found };
        let sample = self.sample(&schema);
        let object = sample.as_object().cloned().unwrap_or_default();
        if schema["additionalProperties"] == false {
            let mut surplus = object.clone();
            surplus.insert(SURPLUS.to_owned(), json!(1));
            let fields = Some(fields.keys().cloned().collect());
            found.push(BadBody {
                fields,
                ..bad(format!("a surplus field in {name:?}"), surplus.into(), SURPLUS)
            });
        }
        for missing in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let mut without = object.clone();
            without.remove(missing);
            found.push(bad(format!("no {missing:?}"), without.into(), missing));
        }
        for (field, of_field) in fields {
            found.extend(self.bad_values(of_field, field).into_iter().map(|bad| {
                let mut changed: Map<_, _> = object.clone();
                changed.insert(field.clone(), bad.body);
                BadBody { body: changed.into(), ..bad }
            }));
        }
        found
    }

    /// A value that a schema allows, without what is optional.
    fn sample(&self, schema: &Value) -> Value {
        let schema = self.resolved(schema);
        let least = schema["minimum"].clone();
        let others = ["oneOf", "anyOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
        if let Some(first) = others.into_iter().find(|other| other["type"] != "null") {
            return self.sample(first);
        }
        let Some(kinds) = self.kinds(&schema) else { return json!("any") };
        match kinds.first().map(String::as_str) {
            _ if schema["enum"].is_array() => schema["enum"][0].clone(),
            Some("boolean") => json!(false),
            Some("integer" | "number") => {
                if least.is_null() {
                    json!(1)
                } else {
                    least
                }
            }
            Some("array") => {
                let count = schema["minItems"].as_u64().unwrap_or(0);
                (0..count).map(|_| self.sample(&schema["items"])).collect()
            }
            Some("object") => {
                let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                required.map(|name| (name.to_owned(), self.sample(&schema["properties"][name]))).collect()
            }
            _ if schema["format"] == "ipv4" => json!("169.254.169.254"),
            // The same as in paths. Most other texts are identifiers.
            _ => json!("one"),
        }
    }

    /// The kinds of JSON that a schema allows, or `None` for all.
    fn kinds(&self, schema: &Value) -> Option<Vec<String>> {
        let schema = self.resolved(schema);
        let others = ["oneOf", "anyOf"].into_iter().find_map(|key| schema[key].as_array());
        if let Some(others) = others {
            let kinds: Option<Vec<_>> = others.iter().map(|other| self.kinds(other)).collect();
            return kinds.map(|kinds| kinds.concat());
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match (&schema["type"], &schema["enum"]) {
            (Value::String(kind), _) => Some(vec![kind.clone()]),
            (Value::Array(kinds), _) => Some(kinds.iter().filter_map(text).collect()),
            (_, Value::Array(values)) => {
                let kind = |value: &Value| if value.is_null() { "null" } else { "string" };
                Some(values.iter().map(|value| kind(value).to_owned()).collect())
            }
            _ => None,
        }
    }

    /// Follows references, and joins what `allOf` has.
    fn resolved(&self, schema: &Value) -> Value {
        if let Some(reference) = schema["$ref"].as_str() {
            let pointer = reference.strip_prefix('#').expect("a reference within the document");
            return self.resolved(self.0.pointer(pointer).unwrap_or_else(|| panic!("no {reference}")));
        }
        let Some(parts) = schema["allOf"].as_array() else { return schema.clone() };
        let mut joined = json!({"type": "object", "properties": {}, "required": []});
        for part in parts.iter().map(|part| self.resolved(part)) {
            for (name, value) in part["properties"].as_object().into_iter().flatten() {
                joined["properties"][name] = value.clone();
            }
            let required = joined["required"].as_array_mut().expect("just made");
            required.extend(part["required"].as_array().into_iter().flatten().cloned());
            if let Some(more) = part.get("additionalProperties") {
                joined["additionalProperties"] = more.clone();
            }
        }
        joined
    }
}
