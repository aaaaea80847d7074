//! Policies that are judged by the types and by the CRDs: the table `cases.yaml`, for the tests of each of these judges.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    exceptions: BTreeMap<String, String>,
    cases: Vec<Case>,
}

/// Policy, and what refuses it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    kind: Option<String>,
    pub(crate) spec: Value,
    repeat: Option<Repeat>,
    /// Part of what the types say; `None` if they take it.
    pub(crate) types: Option<String>,
    /// Part of what an API server says by the CRDs; `None` if it takes it.
    pub(crate) crd: Option<String>,
    exception: Option<String>,
}

/// List with one item in the spec, which is there so many times.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Repeat {
    at: String,
    times: usize,
}

impl Case {
    /// The kinds for which the case is.
    pub(crate) fn kinds(&self) -> Vec<&str> {
        match &self.kind {
            Some(kind) => vec![kind],
            None => vec!["ClusterSandboxPolicy", "SandboxPolicy"],
        }
    }
}

/// Reads the table. Where only one judge refuses a policy, the case names one of the exceptions, and each of these is needed.
pub(crate) fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/tests/judged/cases.yaml");
    let Table { exceptions, mut cases } =
        serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut needed = BTreeSet::new();
    for case in &mut cases {
        if let Some(Repeat { at, times }) = &case.repeat {
            let list = case.spec.pointer_mut(at).and_then(Value::as_array_mut).expect("a list");
            let item = list[0].clone();
            list.resize(*times, item);
        }
        let agree = case.types.is_some() == case.crd.is_some();
        assert_eq!(
            agree,
            case.exception.is_none(),
            "only one judge refuses a policy of an exception: {}",
            case.spec
        );
        if let Some(name) = &case.exception {
            assert!(exceptions.contains_key(name), "{name}: {}", case.spec);
            needed.insert(name.clone());
        }
    }
    assert_eq!(needed, exceptions.keys().cloned().collect(), "every exception is needed");
    cases
}
