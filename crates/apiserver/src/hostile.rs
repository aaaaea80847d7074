//! Whatever reads bytes of a client, each as one function of any bytes: it neither panics nor runs without end.

mod owned;

use std::sync::LazyLock;

use http::Uri;
use serde_json::Value;

use crate::call::Target;
use crate::expression::{Budget, Evaluation};
use crate::hooks::answer;
use crate::json_path::JsonPath;
use crate::kinds::{Kind, builtin};
use crate::query::Query;
use crate::registry::Registry;
use crate::selector::{FieldSelector, LabelSelector};
use crate::verbs::list::Start;
use crate::{body, expression, patch, protobuf};

pub use owned::{applied, owners};

static POD: LazyLock<Kind> =
    LazyLock::new(|| builtin().into_iter().find(|kind| kind.kind == "Pod").expect("Pods are built in"));
static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::new);

/// Selectors and JSON paths. A label selector that was read is read the same from what it is shown as.
pub fn selectors(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let pod = serde_json::json!({"metadata": {"name": "a", "labels": {"k": "v"}}, "spec": {"nodeName": "n"}});
    if let Ok(selector) = LabelSelector::parse(text) {
        let shown = selector.to_string();
        let again =
            LabelSelector::parse(&shown).unwrap_or_else(|error| panic!("{text:?}: {shown:?}: {error}"));
        assert_eq!(again.to_string(), shown, "{text:?}");
        assert_eq!(again.matches(&pod), selector.matches(&pod), "{text:?}: {shown:?}");
    }
    if let Ok(selector) = FieldSelector::parse(text, &POD) {
        selector.matches(&pod);
    }
    if let Ok(path) = JsonPath::parse(text) {
        path.find(&pod);
    }
}

/// The path and the parameters of a request: what it names, its numbers (resource versions, limits, times), and the
/// continue token, which is read as it was written.
pub fn queries(bytes: &[u8]) {
    let Ok(uri) = Uri::try_from([b"/".as_slice(), bytes].concat()) else { return };
    if let Some(target) = Target::of(uri.path().trim_start_matches('/'), &REGISTRY.served()) {
        assert!(target.namespace.is_none() || target.resource.kind.namespaced, "{uri}");
    }
    let Ok(query) = Query::of(&uri) else { return };
    if let Ok(Some(revision)) = query.revision() {
        let digits =
            query.get("resourceVersion").is_some_and(|text| text.bytes().all(|c| c.is_ascii_digit()));
        assert!(digits, "{uri}: {revision}");
    }
    for name in ["limit", "timeoutSeconds", "gracePeriodSeconds"] {
        if let Ok(Some(number)) = query.number(name) {
            assert_eq!(query.get(name).and_then(|text| text.parse().ok()), Some(number), "{uri}");
        }
    }
    let _ = (query.flag("watch"), query.all("dryRun").count());
    if let Some(Ok(start)) = query.get("continue").map(Start::decode) {
        assert_eq!(Start::decode(&start.encode()).ok(), Some(start), "{uri}");
    }
}

/// A document and a patch, as JSON with a NUL between.
fn pair(bytes: &[u8]) -> Option<(Value, Value)> {
    let nul = bytes.iter().position(|&byte| byte == 0)?;
    let read = |bytes| serde_json::from_slice(bytes).ok();
    Some((read(&bytes[..nul])?, read(&bytes[nul + 1..])?))
}

/// Patches of every kind. One that says nothing changes nothing.
pub fn patches(bytes: &[u8]) {
    let Some((document, wanted)) = pair(bytes) else { return };
    let _ = patch::json(&document, &wanted);
    let _ = patch::merge(&document, &wanted);
    let _ = patch::strategic(&document, &wanted, POD.shape());
    if document.is_object() {
        let nothing = Value::Object(serde_json::Map::new());
        assert_eq!(patch::strategic(&document, &nothing, POD.shape()).as_ref(), Ok(&document));
    }
}

/// Bodies in every form.
pub fn bodies(bytes: &[u8]) {
    let _ = body::json(bytes);
    let _ = body::yaml(bytes);
    let _ = protobuf::decode(bytes);
}

/// The answer of a webhook, to a review with the uid `u`. A denial is an error of HTTP.
pub fn answers(bytes: &[u8]) {
    let Ok(review) = serde_json::from_slice(bytes) else { return };
    for mutating in [true, false] {
        if let Ok(answer) = answer::read(&review, "u", mutating) {
            assert!(mutating || answer.patch.is_none());
            let code = answer::denial("a.b.c", &answer.status).code;
            assert!(code.is_client_error() || code.is_server_error(), "{code}");
        }
    }
}

/// An expression and an object, as text and JSON with a NUL between. What can be compiled ends.
pub fn expressions(bytes: &[u8]) {
    let Some(nul) = bytes.iter().position(|&byte| byte == 0) else { return };
    let (Ok(text), Ok(object)) =
        (std::str::from_utf8(&bytes[..nul]), serde_json::from_slice(&bytes[nul + 1..]))
    else {
        return;
    };
    let Ok(compiled) = expression::compile(text, &["object"]) else { return };
    let mut evaluation = Evaluation::new(&Budget::default());
    evaluation.set("object", &object);
    let _ = evaluation.value(&compiled);
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("apiserver_selectors", super::selectors);
        feed("apiserver_queries", super::queries);
        feed("apiserver_patches", super::patches);
        feed("apiserver_applied", super::applied);
        feed("apiserver_owners", super::owners);
        feed("apiserver_bodies", super::bodies);
        feed("apiserver_answers", super::answers);
        feed("apiserver_expressions", super::expressions);
    }
}
