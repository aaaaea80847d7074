//! A walk down a schema, one that built-in definitions and structural schemas of custom kinds share.

use serde_json::{Map, Value};

use super::definitions::{OBJECT_META, definition, resolve};

/// Description of a value by the schema at its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    /// The schema as written at this place: list types and patch strategies stand here.
    place: Option<&'a Value>,
    /// The schema after references, which has the properties.
    node: Option<&'a Value>,
    /// A whole object, in which `apiVersion`, `kind` and `metadata` are always known.
    object: bool,
    /// From the built-in definitions, where an object without properties is open rather than empty.
    builtin: bool,
}

/// Description of one field of an object by a schema.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field<'a> {
    /// The field is described.
    Known(Shape<'a>),
    /// Any field is allowed here, and nothing is known of it.
    Open,
    /// The schema has no such field.
    Unknown,
}

/// Merge strategy of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListType {
    /// As one value.
    Atomic,
    /// Of scalars, each at most once.
    Set,
    /// Of objects that these fields identify.
    Map(Vec<String>),
}

impl<'a> Shape<'a> {
    /// Of which nothing is known: maps are merged by key, lists are atomic.
    pub(crate) const OPEN: Shape<'static> = Shape { place: None, node: None, object: false, builtin: true };

    /// The shape of a whole object of which only the metadata is checked.
    pub(crate) const ENVELOPE: Shape<'static> =
        Shape { place: None, node: None, object: true, builtin: true };

    /// The shape of whole objects by the structural schema of a custom kind.
    pub(crate) fn custom(schema: &'a Value) -> Self {
        Shape { place: Some(schema), node: Some(schema), object: true, builtin: false }
    }

    /// The shape of a built-in definition; open for an unknown name.
    pub(crate) fn builtin(name: &str) -> Shape<'static> {
        let node = definition(name);
        Shape { place: node, node, object: false, builtin: true }
    }

    fn at(self, schema: &'a Value) -> Self {
        let flag = |name: &str| schema.get(name) == Some(&Value::Bool(true));
        Shape {
            place: Some(schema),
            node: Some(resolve(schema)),
            object: flag("x-kubernetes-embedded-resource"),
            builtin: self.builtin,
        }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.place.and_then(|p| p.get(key)).or_else(|| self.node.and_then(|n| n.get(key)))
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }

    fn flag(&self, key: &str) -> bool {
        self.get(key) == Some(&Value::Bool(true))
    }

    /// The JSON type that the schema names, such as `object`.
    pub(crate) fn kind(&self) -> Option<&'a str> {
        self.text("type")
    }

    /// The `format` of the type, such as `int32`.
    pub(crate) fn format(&self) -> Option<&'a str> {
        self.text("format")
    }

    /// An integer or a string, as ports are; or a quantity, which may be any scalar.
    pub(crate) fn scalar_of_any_type(&self) -> bool {
        self.flag("x-kubernetes-int-or-string") || self.get("oneOf").is_some() && self.kind().is_none()
    }

    /// A quantity of a built-in kind. Those of custom kinds have a pattern.
    pub(crate) fn is_quantity(&self) -> bool {
        self.builtin && self.format().is_none() && self.get("oneOf").is_some()
    }

    /// Returns true for a kind of Kubernetes itself, and the metadata of any kind.
    pub(crate) fn is_builtin(&self) -> bool {
        self.builtin
    }

    /// Returns the description of a field.
    pub(crate) fn field(&self, name: &str) -> Field<'a> {
        if self.object {
            match name {
                "metadata" => return Field::Known(Shape::builtin(OBJECT_META)),
                "apiVersion" | "kind" => return Field::Known(Shape::OPEN),
                _ => {}
            }
        }
        let Some(node) = self.node else { return Field::Open };
        let properties = node.get("properties").and_then(Value::as_object);
        if let Some(schema) = properties.and_then(|p| p.get(name)) {
            return Field::Known(self.at(schema));
        }
        match node.get("additionalProperties") {
            Some(schema @ Value::Object(_)) => return Field::Known(self.at(schema)),
            Some(Value::Bool(true)) => return Field::Open,
            _ => {}
        }
        let open = self.flag("x-kubernetes-preserve-unknown-fields")
            || (self.builtin && properties.is_none_or(Map::is_empty))
            || (self.kind().is_none() && properties.is_none());
        if open { Field::Open } else { Field::Unknown }
    }

    /// Returns true if the schema names the field: then it is part of a struct and not a key of a map.
    pub(crate) fn is_struct_field(&self, name: &str) -> bool {
        let named = |node: &Value| node.get("properties").is_some_and(|p| p.get(name).is_some());
        self.node.is_some_and(named) || (self.object && matches!(name, "apiVersion" | "kind" | "metadata"))
    }

    /// The shape of a field; open if nothing is known of it.
    pub(crate) fn child(&self, name: &str) -> Shape<'a> {
        match self.field(name) {
            Field::Known(shape) => shape,
            Field::Open | Field::Unknown => Shape::OPEN,
        }
    }

    /// The shape of a list's items; open if nothing is known of them.
    pub(crate) fn items(&self) -> Shape<'a> {
        match self.node.and_then(|n| n.get("items")) {
            Some(items) => self.at(items),
            None => Shape::OPEN,
        }
    }

    /// Merge strategy of a list at this path for apply; atomic by default.
    pub(crate) fn list_type(&self) -> ListType {
        match self.text("x-kubernetes-list-type") {
            Some("set") => ListType::Set,
            Some("map") => {
                let keys = self.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                let keys =
                    keys.into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect::<Vec<_>>();
                if keys.is_empty() { ListType::Atomic } else { ListType::Map(keys) }
            }
            _ => ListType::Atomic,
        }
    }

    /// Returns true if an object at this path is merged as one value.
    pub(crate) fn is_atomic_map(&self) -> bool {
        self.text("x-kubernetes-map-type") == Some("atomic")
    }

    /// The default value of the schema, if any.
    pub(crate) fn default_value(&self) -> Option<&'a Value> {
        self.place.and_then(|p| p.get("default"))
    }

    /// Strategies of a strategic merge patch at this place: `merge`, `retainKeys`, `replace`.
    pub(crate) fn patch_strategies(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.text("x-kubernetes-patch-strategy").unwrap_or_default().split(',').filter(|s| !s.is_empty())
    }

    /// The field by which a strategic merge patch finds the item of a list.
    pub(crate) fn patch_merge_key(&self) -> Option<&'a str> {
        self.text("x-kubernetes-patch-merge-key")
    }
}
