//! Whatever reads bytes of a client, each as one function of any bytes: it neither panics nor runs without end.

use std::sync::LazyLock;

use serde_json::Value;

use crate::kinds::{Kind, builtin};
use crate::selector::{FieldSelector, LabelSelector};
use crate::table::JsonPath;
use crate::{body, patch, protobuf};

static POD: LazyLock<Kind> =
    LazyLock::new(|| builtin().into_iter().find(|kind| kind.kind == "Pod").expect("Pods are built in"));

/// Selectors and JSON paths.
pub fn selectors(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let pod = serde_json::json!({"metadata": {"name": "a", "labels": {"k": "v"}}, "spec": {"nodeName": "n"}});
    if let Ok(selector) = LabelSelector::parse(text) {
        selector.matches(&pod);
    }
    if let Ok(selector) = FieldSelector::parse(text, &POD) {
        selector.matches(&pod);
    }
    if let Ok(path) = JsonPath::parse(text) {
        path.find(&pod);
    }
}

/// Patches of every kind: a document and a patch, as JSON with a NUL between.
pub fn patches(bytes: &[u8]) {
    let Some(nul) = bytes.iter().position(|&byte| byte == 0) else { return };
    let read = |bytes| serde_json::from_slice::<Value>(bytes).ok();
    let (Some(document), Some(wanted)) = (read(&bytes[..nul]), read(&bytes[nul + 1..])) else { return };
    let _ = patch::json(&document, &wanted);
    let _ = patch::merge(&document, &wanted);
    let _ = patch::strategic(&document, &wanted, POD.shape());
}

/// Bodies in every form.
pub fn bodies(bytes: &[u8]) {
    let _ = body::json(bytes);
    let _ = body::yaml(bytes);
    let _ = protobuf::decode(bytes);
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("apiserver_selectors", super::selectors);
        feed("apiserver_patches", super::patches);
        feed("apiserver_bodies", super::bodies);
    }
}
