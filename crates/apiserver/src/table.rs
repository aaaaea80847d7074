//! Objects as the rows of a table, as `kubectl get` asks for them.

mod json_path;

pub use json_path::JsonPath;
