//! Validation by a structural schema, in the words of a Kubernetes API server.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Structural, flag};
use crate::failure::Cause;
use crate::field_path::{FieldPath, MAX_FINDINGS};
use crate::number;

pub(super) fn object(structural: &Structural, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut walk = Walk { structural, causes: Vec::new() };
    walk.value(structural.schema(), (object, old), FieldPath::ROOT, true);
    walk.causes
}

/// The count that `/scale` sets, which must be a whole number that a count can be.
pub(super) fn replicas(object: &Value, path: &str) -> Option<Cause> {
    let steps = path.split('.').filter(|step| !step.is_empty());
    let value = steps.into_iter().try_fold(object, |value, step| value.get(step))?;
    let wrong = |detail: &str| Some(Cause::invalid(path, value, detail));
    let (shown, kind) = match value {
        Value::Number(number) => match number.as_i64() {
            Some(count) if count < 0 => return wrong("should be a non-negative integer"),
            Some(count) if i32::try_from(count).is_err() => {
                return wrong(&format!("should be less than or equal to {}", i32::MAX));
            }
            Some(_) => return None,
            None => (number.as_f64().map(number::shown).unwrap_or_default(), "float64"),
        },
        Value::String(text) => (text.clone(), "string"),
        Value::Bool(truth) => (truth.to_string(), "bool"),
        Value::Null => return None,
        Value::Array(_) => (value.to_string(), "[]interface {}"),
        Value::Object(_) => (value.to_string(), "map[string]interface {}"),
    };
    let said = format!("{path} accessor error: {shown} is of the type {kind}, expected int64");
    Some(Cause::shown(path, "0", &said))
}

struct Walk<'a> {
    structural: &'a Structural,
    causes: Vec<Cause>,
}

impl Walk<'_> {
    fn add(&mut self, cause: Cause) {
        if self.causes.len() < MAX_FINDINGS {
            self.causes.push(cause);
        }
    }

    fn invalid(&mut self, path: FieldPath<'_>, value: &Value, text: &str) {
        self.add(Cause::invalid(path, value, &format!("{path} in body {text}")));
    }

    fn value(
        &mut self,
        schema: &Value,
        (value, old): (&Value, Option<&Value>),
        path: FieldPath<'_>,
        root: bool,
    ) {
        if self.causes.len() == MAX_FINDINGS || old == Some(value) {
            return;
        }
        if value.is_null() && (flag(schema, "nullable") || schema.get("type").is_none()) {
            return;
        }
        // A number of the wrong kind is still compared with its bounds.
        let fits = self.has_type(schema, value, path);
        if !fits {
            if value.is_number() {
                self.number(schema, value, path);
            }
            return;
        }
        self.enumeration(schema, value, path);
        match value {
            Value::Object(_) => self.map(schema, (value, old), path, root),
            Value::Array(_) => self.list(schema, (value, old), path),
            Value::String(text) => self.text(schema, text, path),
            Value::Number(_) => self.number(schema, value, path),
            _ => {}
        }
        self.combined(schema, (value, old), path);
    }

    fn has_type(&mut self, schema: &Value, value: &Value, path: FieldPath<'_>) -> bool {
        let found = crate::kinds::type_name(value);
        let (fits, wanted) = if flag(schema, "x-kubernetes-int-or-string") {
            (matches!(found, "integer" | "string"), "integer,string")
        } else {
            let Some(wanted) = schema.get("type").and_then(Value::as_str) else { return true };
            if wanted == "integer" && (found == "number" || found == "integer" || found == "boolean") {
                return self.integer(schema, value, path);
            }
            (wanted == found || (wanted == "number" && found == "integer"), wanted)
        };
        // As everywhere, a whole number may be written with a point.
        let fits = fits
            || (wanted.starts_with("integer")
                && found == "number"
                && value.as_f64().is_some_and(number::is_whole));
        if !fits {
            let message =
                format!("Invalid value: \"{found}\": {path} in body must be of type {wanted}: \"{found}\"");
            self.add(Cause::new("FieldValueTypeInvalid", path, message));
        }
        fits
    }

    /// A number, or a truth value, where an integer is wanted. The words are those of a real server, odd ones included.
    fn integer(&mut self, schema: &Value, value: &Value, path: FieldPath<'_>) -> bool {
        let bits =
            schema.get("format").and_then(Value::as_str).filter(|bits| matches!(*bits, "int32" | "int64"));
        let whole = value.as_i64().or_else(|| {
            let float = value.as_f64().filter(|float| number::is_whole(*float))?;
            Some(float as i64)
        });
        let fits_bits = whole.is_some_and(|whole| bits != Some("int32") || i32::try_from(whole).is_ok());
        if value.is_number() && !fits_bits {
            let format = bits.map_or("(default format)".to_owned(), |bits| format!("with format {bits}"));
            let said = format!("Checked value must be of type integer {format} in {path}");
            self.add(Cause::invalid("<nil>", &"".into(), &said));
        }
        if whole.is_some() {
            return fits_bits;
        }
        let (wanted, found) = match (bits, value.is_number()) {
            (Some(bits), true) => (bits, "float64"),
            (Some(bits), false) => (bits, ""),
            (None, true) => ("integer", "number"),
            (None, false) => ("integer", "boolean"),
        };
        let said =
            format!("Invalid value: \"{found}\": {path} in body must be of type {wanted}: \"{found}\"");
        self.add(Cause::new("FieldValueTypeInvalid", path, said));
        false
    }

    fn enumeration(&mut self, schema: &Value, value: &Value, path: FieldPath<'_>) {
        let Some(allowed) = schema.get("enum").and_then(Value::as_array) else { return };
        if !allowed.contains(value) {
            let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
            let message = format!("Unsupported value: {value}: supported values: {}", allowed.join(", "));
            self.add(Cause::new("FieldValueNotSupported", path, message));
        }
    }

    fn map(
        &mut self,
        schema: &Value,
        (value, old): (&Value, Option<&Value>),
        path: FieldPath<'_>,
        root: bool,
    ) {
        let Some(map) = value.as_object() else { return };
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(name) {
                self.add(Cause::required(path.field(name), ""));
            }
        }
        let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
        if let Some(most) = limit("maxProperties").filter(|most| map.len() as u64 > *most) {
            let message = format!("Too many: {}: must have at most {most} items", map.len());
            self.add(Cause::new("FieldValueTooMany", path, message));
        }
        if let Some(least) = limit("minProperties").filter(|least| (map.len() as u64) < *least) {
            self.invalid(path, value, &format!("should have at least {least} properties"));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let additional = schema.get("additionalProperties").filter(|schema| schema.is_object());
        for (name, child) in map {
            if root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            let schema = properties.and_then(|properties| properties.get(name)).or(additional);
            if let Some(schema) = schema {
                let pair = (child, old.and_then(|old| old.get(name)));
                self.value(schema, pair, path.field(name), flag(schema, "x-kubernetes-embedded-resource"));
            }
        }
    }

    fn list(&mut self, schema: &Value, (value, old): (&Value, Option<&Value>), path: FieldPath<'_>) {
        let Some(items) = value.as_array() else { return };
        let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
        if let Some(most) = limit("maxItems").filter(|most| items.len() as u64 > *most) {
            let message = format!("Too many: {}: must have at most {most} items", items.len());
            self.add(Cause::new("FieldValueTooMany", path, message));
        }
        if let Some(least) = limit("minItems").filter(|least| (items.len() as u64) < *least) {
            self.invalid(path, value, &format!("should have at least {least} items"));
        }
        let list_schema = schema;
        // Items of the old list by their keys. Without keys, no item is the same as another one.
        let keys = keys(list_schema);
        let olds = old.and_then(Value::as_array).into_iter().flatten().filter(|_| !keys.is_empty());
        let known: HashMap<Value, &Value> = olds.map(|old| (identity(&keys, old), old)).collect();
        if let Some(schema) = list_schema.get("items") {
            for (index, item) in items.iter().enumerate() {
                let old = known.get(&identity(&keys, item)).copied();
                self.value(schema, (item, old), path.item(index), false);
            }
        }
        self.unique(list_schema, items, path);
    }

    /// Lists that are sets or maps hold each key once.
    fn unique(&mut self, schema: &Value, items: &[Value], path: FieldPath<'_>) {
        let keys = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("set") => Vec::new(),
            Some("map") => keys(schema),
            _ => return,
        };
        let mut seen: HashSet<Value> = HashSet::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let identity = if keys.is_empty() { item.clone() } else { identity(&keys, item) };
            if seen.contains(&identity) {
                let message = format!("Duplicate value: {identity}");
                self.add(Cause::new("FieldValueDuplicate", path.item(index), message));
            }
            seen.insert(identity);
        }
    }

    fn text(&mut self, schema: &Value, text: &str, path: FieldPath<'_>) {
        let value = Value::from(text);
        let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
        let length = text.chars().count() as u64;
        if let Some(most) = limit("maxLength").filter(|most| length > *most) {
            let message = format!("Too long: may not be more than {most} bytes");
            self.add(Cause::new("FieldValueTooLong", path, message));
        }
        if let Some(least) = limit("minLength").filter(|least| length < *least) {
            self.invalid(path, &value, &format!("should be at least {least} chars long"));
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && self.structural.pattern(pattern).is_some_and(|regex| !regex.is_match(text))
        {
            self.invalid(path, &value, &format!("should match '{pattern}'"));
        }
        if let Some(format) = schema.get("format").and_then(Value::as_str)
            && !fits_format(format, text)
        {
            self.invalid(path, &value, &format!("must be of type {format}: {value}"));
        }
    }

    fn number(&mut self, schema: &Value, value: &Value, path: FieldPath<'_>) {
        let Some(number) = value.as_f64() else { return };
        let limit = |name: &str| schema.get(name).and_then(Value::as_f64);
        if let Some(least) = limit("minimum") {
            if flag(schema, "exclusiveMinimum") && number <= least {
                self.invalid(path, value, &format!("should be greater than {least}"));
            } else if number < least {
                self.invalid(path, value, &format!("should be greater than or equal to {least}"));
            }
        }
        if let Some(most) = limit("maximum") {
            if flag(schema, "exclusiveMaximum") && number >= most {
                self.invalid(path, value, &format!("should be less than {most}"));
            } else if number > most {
                self.invalid(path, value, &format!("should be less than or equal to {most}"));
            }
        }
        if let Some(step) = limit("multipleOf").filter(|step| *step > 0.0)
            && (number / step).fract() != 0.0
        {
            self.invalid(path, value, &format!("should be a multiple of {step}"));
        }
    }

    fn combined(&mut self, schema: &Value, (value, old): (&Value, Option<&Value>), path: FieldPath<'_>) {
        let list = |name: &str| schema.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for part in list("allOf") {
            self.value(part, (value, old), path, false);
        }
        let (any, one) = (list("anyOf"), list("oneOf"));
        // The pair of types that stands for int-or-string is checked as that.
        if !any.is_empty() && !flag(schema, "x-kubernetes-int-or-string") && self.matching(any, value) == 0 {
            self.invalid(path, value, "must validate at least one schema (anyOf)");
        }
        if !one.is_empty() && self.matching(one, value) != 1 {
            self.invalid(path, value, "must validate one and only one schema (oneOf)");
        }
        if schema.get("not").is_some_and(|not| self.fits(not, value)) {
            self.invalid(path, value, "must not validate the schema (not)");
        }
    }

    fn matching(&self, parts: &[Value], value: &Value) -> usize {
        parts.iter().filter(|part| self.fits(part, value)).count()
    }

    fn fits(&self, schema: &Value, value: &Value) -> bool {
        let mut walk = Walk { structural: self.structural, causes: Vec::new() };
        walk.value(schema, (value, None), FieldPath::ROOT, false);
        walk.causes.is_empty()
    }
}

/// Returns the fields that identify an item of a list.
fn keys(list: &Value) -> Vec<&str> {
    let keys = list.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
    keys.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn identity(keys: &[&str], item: &Value) -> Value {
    keys.iter().filter_map(|key| Some(((*key).to_owned(), item.get(key)?.clone()))).collect()
}

/// Formats that a Kubernetes API server checks; others are notes to the reader.
fn fits_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "uuid" => uuid::Uuid::parse_str(text).is_ok(),
        "byte" => {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        _ => true,
    }
}
