//! Objects without what differs from run to run. Who is who stays visible: a uid becomes `Kind/name@N` and a generated
//! name `prefix-#N.M`, where N is the step after which the object was first seen and M its place among the like of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::compact::compact;
use super::observe::Objects;

/// Normalised objects by `Kind/name`.
pub(crate) type Look = BTreeMap<String, Value>;

static TIME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)").expect("a pattern")
});
static UID: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").expect("a pattern")
});
/// In the range of the test cluster's Services.
static CLUSTER_ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b10\.96\.\d+\.\d+\b").expect("a pattern"));
/// In the range that kwok takes the Pods' addresses from.
static POD_ADDRESS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^10\.0\.\d+\.\d+$").expect("a pattern"));

/// Memory of a life about its objects between steps.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    namespace: String,
    /// Kind, name and first step of every uid.
    uids: BTreeMap<String, (String, String, usize)>,
    /// Prefix and first step of every generated name.
    generated: BTreeMap<String, (String, usize)>,
}

/// Replacements of texts; the longest text is replaced first.
type Words = Vec<(String, String)>;

impl Memory {
    pub(crate) fn new(namespace: &str) -> Self {
        Memory { namespace: namespace.into(), uids: BTreeMap::new(), generated: BTreeMap::new() }
    }

    /// The objects as they are after a step; what is new among them is remembered as that step's.
    pub(crate) fn look(&mut self, step: usize, objects: &Objects) -> Look {
        self.learn(step, objects);
        let words = self.words(objects);
        let kept = objects.iter().filter(|((kind, _), _)| kind != "Event");
        kept.map(|((kind, name), object)| {
            let name = replaced(name, &words);
            (format!("{kind}/{name}"), spoken(&compact(kind, object), &words))
        })
        .collect()
    }

    /// Returns the texts of the controllers' events, each once.
    pub(crate) fn events(&self, objects: &Objects) -> BTreeSet<String> {
        let words = self.words(objects);
        let events = objects.iter().filter(|((kind, _), _)| kind == "Event").map(|(_, event)| event);
        let ours = events.filter(|event| {
            let kind = event["regarding"]["kind"].as_str().unwrap_or_default();
            kind.starts_with("Sandbox")
        });
        ours.map(|event| {
            let text = |key: &str| event[key].as_str().unwrap_or_default();
            let about = &event["regarding"];
            let (kind, name) = (about["kind"].as_str().unwrap_or("?"), about["name"].as_str().unwrap_or("?"));
            let line = [text("type"), text("reason"), text("action"), text("note")].join(" | ");
            replaced(&format!("{kind}/{name}: {line}"), &words)
        })
        .collect()
    }

    fn learn(&mut self, step: usize, objects: &Objects) {
        for ((kind, name), object) in objects {
            let metadata = &object["metadata"];
            if let Some(uid) = metadata["uid"].as_str() {
                self.uids.entry(uid.into()).or_insert_with(|| (kind.clone(), name.clone(), step));
            }
            if let Some(prefix) = metadata["generateName"].as_str() {
                self.generated.entry(name.clone()).or_insert_with(|| (prefix.into(), step));
            }
        }
    }

    fn words(&self, objects: &Objects) -> Words {
        let names = self.names(objects);
        let mut words: Words = vec![(self.namespace.clone(), "$namespace".into())];
        for (uid, (kind, name, step)) in &self.uids {
            let name = names.get(name).unwrap_or(name);
            words.push((uid.clone(), format!("{kind}/{name}@{step}")));
        }
        for ((kind, name), object) in objects {
            if kind == "Pod"
                && let Some(address) = object["status"]["podIP"].as_str()
            {
                words.push((address.into(), format!("$ip({})", names.get(name).unwrap_or(name))));
            }
        }
        for (name, word) in names {
            words.push((hutch_api::name_hash(&name), format!("$hash({word})")));
            words.push((name, word));
        }
        words.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        words
    }

    /// Returns replacements for generated names. Two alike objects cannot be distinguished, which does not matter: they are
    /// numbered by their content.
    fn names(&self, objects: &Objects) -> BTreeMap<String, String> {
        let mut blank: Words = self.generated.keys().map(|name| (name.clone(), "*".into())).collect();
        blank.extend(self.uids.iter().map(|(uid, (kind, _, _))| (uid.clone(), kind.clone())));
        blank.extend(self.generated.keys().map(|name| (hutch_api::name_hash(name), "*".into())));
        let mut alike: BTreeMap<(&str, usize), Vec<(String, &str)>> = BTreeMap::new();
        for (name, (prefix, step)) in &self.generated {
            let object = objects.get(&("Sandbox".to_owned(), name.clone()));
            // What is gone comes last, in an order that is not important.
            let face =
                object.map_or("~".into(), |object| spoken(&compact("Sandbox", object), &blank).to_string());
            alike.entry((prefix, *step)).or_default().push((face, name));
        }
        let mut names = BTreeMap::new();
        for ((prefix, step), mut faces) in alike {
            faces.sort();
            for (index, (_, name)) in faces.into_iter().enumerate() {
                names.insert(name.to_owned(), format!("{prefix}#{step}.{}", index + 1));
            }
        }
        names
    }
}

fn replaced(text: &str, words: &Words) -> String {
    let mut text = text.to_owned();
    for (from, to) in words {
        if text.contains(from.as_str()) {
            text = text.replace(from.as_str(), to);
        }
    }
    let text = TIME.replace_all(&text, "$$time");
    let text = CLUSTER_ADDRESS.replace_all(&text, "$$service-ip");
    UID.replace_all(&text, "$$uid").into_owned()
}

fn spoken(value: &Value, words: &Words) -> Value {
    match value {
        Value::String(text) => {
            let text = replaced(text, words);
            if POD_ADDRESS.is_match(&text) { json!("$ip") } else { text.into() }
        }
        Value::Array(items) => items.iter().map(|item| spoken(item, words)).collect(),
        Value::Object(map) => {
            let spoken: Map<String, Value> =
                map.iter().map(|(key, value)| (key.clone(), spoken(value, words))).collect();
            spoken.into()
        }
        other => other.clone(),
    }
}
