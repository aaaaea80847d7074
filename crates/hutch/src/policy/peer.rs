//! Destinations that are other Sandboxes: found by the names of Services, as the node finds them.

use std::num::NonZeroU16;
use std::sync::Arc;

use hutch_api::{Sandbox, owner};
use hutch_node::ServiceFacts;
use hutch_policy::{Decision, Destination, Host, Level, Subject, decide_peer, names_sandboxes, open_ports};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::attached::{Attached, described};
use super::judge::{Judgment, rows};

/// Judgment about the Sandboxes behind a Service.
pub(super) struct Found {
    /// The name means the Service, also where rules about hosts cover it: a port of it is open.
    pub(super) is_open: bool,
    pub(super) judgment: Judgment,
}

/// A Sandbox behind a Service, and its Pod if it has one.
struct Behind {
    subject: Subject,
    pod: Option<Pod>,
}

/// Result of the search for Sandboxes behind a name.
pub(super) enum Search {
    /// No rule is about Sandboxes, or the name means something else.
    Nothing,
    /// There is no Service of the name: this hint.
    NoService(String),
    Found(Found),
}

/// Decides about the Sandboxes behind the name of a destination.
pub(super) async fn find(
    attached: &Attached,
    levels: &[Arc<Level>],
    destination: &Destination,
) -> anyhow::Result<Search> {
    let Host::Name(name) = &destination.host else { return Ok(Search::Nothing) };
    if !names_sandboxes(levels) {
        return Ok(Search::Nothing);
    }
    let own = attached.subject.namespace.as_str();
    let Some((service, namespace)) = service_of(name.as_str(), own) else { return Ok(Search::Nothing) };
    let services: Api<Service> = Api::namespaced(attached.client.clone(), namespace);
    let found = services.get_opt(service).await.map_err(described(format!("Service {service}")))?;
    let Some(facts) = found.map(ServiceFacts::of) else { return Ok(without_service(name.as_str(), own)) };
    let behind = behind(attached, namespace, &facts).await?;
    let open = |one: &Behind| !facts.open(open_ports(levels, own, &one.subject), one.pod.as_ref()).is_empty();
    let is_open = behind.iter().any(open);
    let judged = behind.iter().map(|one| {
        let target = facts.target(destination.port.get(), one.pod.as_ref()).and_then(NonZeroU16::new);
        match target {
            Some(port) => judge(levels, own, &one.subject, port, one.pod.is_some()),
            None => Judgment::denied(format!("Service {service:?} has no port {}", destination.port)),
        }
    });
    // The node chooses among those that are open.
    let judgment = judged.min_by_key(|judgment| judgment.decision);
    let found = judgment.map(|judgment| Search::Found(Found { is_open, judgment }));
    Ok(found.unwrap_or(Search::Nothing))
}

/// Returns a hint for a name that only a Service can have. None has it.
fn without_service(name: &str, own: &str) -> Search {
    let only_service = !name.contains('.') || name.ends_with(".svc") || name.ends_with(".svc.cluster.local");
    let Some((service, namespace)) = service_of(name, own).filter(|_| only_service) else {
        return Search::Nothing;
    };
    Search::NoService(format!(
        "there is no Service {service:?} in namespace {namespace:?}, by whose name and ports a rule with `sandboxes` opens \
         Sandboxes; `spec.service: true` of a Sandbox makes one"
    ))
}

/// Decides about a port of a Sandbox, for one of the namespace `from`.
pub(super) fn judge(
    levels: &[Arc<Level>],
    from: &str,
    to: &Subject,
    port: NonZeroU16,
    runs: bool,
) -> Judgment {
    let (decision, opinions) = decide_peer(levels, from, to, port);
    let mut judgment = Judgment { policies: rows(levels, &opinions), ..Judgment::denied(String::new()) };
    judgment.decision = decision;
    let opens = judgment.decisive().is_some();
    judgment.reason = (!opens).then(|| "no policy opens another sandbox".to_owned());
    if decision == Decision::Allow {
        let name = to.sandbox.as_deref().unwrap_or_default();
        let asleep = if runs { "" } else { ", which has no Pod" };
        judgment.reaches = Some(format!("port {port} of sandbox {}/{name}{asleep}", to.namespace));
    }
    judgment
}

/// Returns the Service and the namespace of a name, as a Sandbox of the namespace `own` sees it.
fn service_of<'a>(name: &'a str, own: &'a str) -> Option<(&'a str, &'a str)> {
    let short = name.strip_suffix(".svc.cluster.local").or_else(|| name.strip_suffix(".svc"));
    match (short, name.split_once('.')) {
        (None, None) => Some((name, own)),
        (None, Some((service, namespace))) if !namespace.contains('.') => Some((service, namespace)),
        (Some(short), _) => short.split_once('.').filter(|(_, namespace)| !namespace.contains('.')),
        _ => None,
    }
}

/// Returns the name of the Service that a host names, as the Sandbox sees it; `None` for who may not read Services.
pub(super) async fn service_named(attached: &Attached, host: &str) -> Option<String> {
    let Host::Name(name) = crate::allow::example(host).ok()?.host else { return None };
    let (service, namespace) = service_of(name.as_str(), &attached.subject.namespace)?;
    let found =
        Api::<Service>::namespaced(attached.client.clone(), namespace).get_opt(service).await.ok()??;
    Some(found.name_any())
}

/// Returns the Sandboxes behind a Service: those of its Pods, else the one that controls it.
async fn behind(attached: &Attached, namespace: &str, facts: &ServiceFacts) -> anyhow::Result<Vec<Behind>> {
    let client = &attached.client;
    let labels = match namespace == attached.subject.namespace {
        true => attached.subject.namespace_labels.clone(),
        false => {
            let found = Api::<Namespace>::all(client.clone()).get(namespace).await;
            found.map_err(described(format!("namespace {namespace}")))?.labels().clone()
        }
    };
    let subject = |sandbox: &Sandbox| Subject {
        namespace: namespace.to_owned(),
        namespace_labels: labels.clone(),
        sandbox: Some(sandbox.name_any()),
        labels: sandbox.labels().clone(),
        ..Subject::default()
    };
    let all = ListParams::default();
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&all).await;
    let pods = pods.map_err(described(format!("Pods of namespace {namespace}")))?;
    let sandboxes = Api::<Sandbox>::namespaced(client.clone(), namespace).list(&all).await;
    let sandboxes = sandboxes.map_err(described(format!("Sandboxes of namespace {namespace}")))?.items;
    let by_uid = |uid: &str| sandboxes.iter().find(|sandbox| sandbox.uid().as_deref() == Some(uid));
    let selected = pods.items.into_iter().filter(|pod| facts.leads_to(pod));
    let mut behind: Vec<Behind> = selected
        .filter_map(|pod| {
            let sandbox = by_uid(&owner::sandbox(&pod)?.uid)?;
            Some(Behind { subject: subject(sandbox), pod: Some(pod) })
        })
        .collect();
    if behind.is_empty() {
        let asleep = facts.owner().and_then(by_uid);
        behind.extend(asleep.map(|sandbox| Behind { subject: subject(sandbox), pod: None }));
    }
    Ok(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_service_is_a_hint_where_the_name_is_that_of_none_else() {
        let hint = |name: &str| match without_service(name, "own") {
            Search::NoService(hint) => hint,
            _ => String::new(),
        };
        assert!(hint("db").starts_with("there is no Service \"db\" in namespace \"own\""));
        assert!(hint("db.far.svc.cluster.local").contains("\"far\""));
        assert_eq!(hint("db.example"), "");
    }

    #[test]
    fn name_is_that_of_a_service_in_one_of_four_forms() {
        for (name, expected) in [
            ("db", Some(("db", "own"))),
            ("db.far", Some(("db", "far"))),
            ("db.far.svc", Some(("db", "far"))),
            ("db.far.svc.cluster.local", Some(("db", "far"))),
            ("a.b.c", None),
            ("db.svc", None),
            ("a.b.c.svc", None),
        ] {
            assert_eq!(service_of(name, "own"), expected, "{name}");
        }
    }
}
