//! The action for an object, from the state that was read live.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::graph::Dependent;

/// State of an owner in a live read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It is there, with the UID of the reference.
    Solid,
    /// It is not there, or another object has its name.
    Absent,
    /// It is there, being deleted, and waits for what it owns.
    Waiting,
    /// It could not be read, or its kind is not served: nothing may be concluded.
    Unknown,
}

/// How the deletion treats what the object itself owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Background,
    Foreground,
    Orphan,
}

/// Action for a dependent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// It stays as it is.
    Keep,
    /// It stays and loses the references to owners that are gone.
    Trim(Vec<OwnerReference>),
    /// No owner holds it.
    Delete(Manner),
    /// No owner holds it, and it is part of a circle of owners that wait for each other: it stops blocking its owners,
    /// and is deleted in the next reconcile.
    Unblock,
}

/// A dependent as it was read, with what is known of its own dependents.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) is_pod: bool,
    /// Each owner reference with what its owner is.
    pub(crate) owners: Vec<(OwnerReference, Option<Owner>)>,
    /// It has the finalizer of its kind of deletion.
    pub(crate) foreground: bool,
    pub(crate) orphan: bool,
    /// It owns something.
    pub(crate) has_dependents: bool,
    /// Something that it owns waits for its own dependents in turn.
    pub(crate) waiting_dependent: bool,
}

/// Returns true for the reference to the Sandbox that controls an object.
fn is_sandbox(reference: &OwnerReference) -> bool {
    let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
    reference.controller == Some(true) && reference.kind == "Sandbox" && group == hutch_api::GROUP
}

/// Decides about one dependent.
pub(crate) fn judge(held: &Held) -> Verdict {
    let any = |owner| held.owners.iter().any(|(_, found)| *found == Some(owner));
    let is_left = |(reference, found): &(OwnerReference, Option<Owner>)| {
        is_sandbox(reference) && matches!(found, Some(Owner::Absent | Owner::Waiting))
    };
    // Another owner does not keep a Pod without its Sandbox, whose policies it has.
    let is_left = held.is_pod && held.owners.iter().any(is_left);
    let is_unknown = |found: &Option<Owner>| found.is_none_or(|found| found == Owner::Unknown);
    if held.owners.is_empty() || (!is_left && held.owners.iter().any(|(_, found)| is_unknown(found))) {
        return Verdict::Keep;
    }
    if any(Owner::Solid) && !is_left {
        let solid = held.owners.iter().filter(|(_, found)| *found == Some(Owner::Solid));
        let kept: Vec<_> = solid.map(|(reference, _)| reference.clone()).collect();
        return if kept.len() == held.owners.len() { Verdict::Keep } else { Verdict::Trim(kept) };
    }
    if any(Owner::Waiting) && held.has_dependents {
        let blocks = held.owners.iter().any(|(reference, _)| reference.block_owner_deletion == Some(true));
        let circle = held.waiting_dependent && blocks;
        return if circle { Verdict::Unblock } else { Verdict::Delete(Manner::Foreground) };
    }
    Verdict::Delete(match (held.orphan, held.foreground) {
        (true, _) => Manner::Orphan,
        (_, true) => Manner::Foreground,
        _ => Manner::Background,
    })
}

/// Action for an owner that waits for its dependents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing blocks it.
    Release,
    /// These block it and are to be reconciled.
    Until(Vec<String>),
}

/// Decides about an owner in foreground deletion.
pub(crate) fn wait(dependents: &[Dependent]) -> Wait {
    if !dependents.iter().any(|dependent| dependent.blocks) {
        return Wait::Release;
    }
    let still = dependents.iter().filter(|dependent| !dependent.object.deleting);
    Wait::Until(still.map(|dependent| dependent.object.uid.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::graph::Object;
    use super::super::graph::tests::{object, owner};
    use super::*;

    fn held(owners: &[Owner]) -> Held {
        let owners = owners.iter().enumerate().map(|(n, found)| (owner(&n.to_string(), true), Some(*found)));
        Held { owners: owners.collect(), ..Held::default() }
    }

    /// Regression: a second owner kept the Pod of a Sandbox, which then had other policies.
    #[test]
    fn second_owner_does_not_keep_what_a_sandbox_controlled() {
        for (kind, version, controls, found, kept) in [
            ("Sandbox", "agents.x-k8s.io/v1beta1", true, Owner::Absent, false),
            ("Sandbox", "agents.x-k8s.io/v1alpha1", true, Owner::Waiting, false),
            ("Sandbox", "agents.x-k8s.io/v1beta1", true, Owner::Solid, true),
            ("Sandbox", "agents.x-k8s.io/v1beta1", false, Owner::Absent, true),
            ("Sandbox", "example.com/v1", true, Owner::Absent, true),
            ("ConfigMap", "v1", true, Owner::Absent, true),
        ] {
            let mut held = held(&[found, Owner::Solid]);
            held.is_pod = true;
            let reference = &mut held.owners[0].0;
            (reference.kind, reference.api_version) = (kind.into(), version.into());
            reference.controller = Some(controls);
            let deleted = matches!(judge(&held), Verdict::Delete(_));
            assert_eq!(deleted, !kept, "{kind} {version} {controls} {found:?}");
            held.owners[1].1 = Some(Owner::Unknown);
            assert_eq!(matches!(judge(&held), Verdict::Delete(_)), !kept, "an owner of an unknown kind");
            // A volume with a further owner keeps its data.
            (held.is_pod, held.owners[1].1) = (false, Some(Owner::Solid));
            assert!(!matches!(judge(&held), Verdict::Delete(_)));
        }
    }

    #[test]
    fn dependent_is_deleted_only_when_no_owner_holds_it() {
        use Owner::{Absent, Solid, Unknown, Waiting};
        let background = Verdict::Delete(Manner::Background);
        let table: &[(&[Owner], Verdict)] = &[
            (&[], Verdict::Keep),
            (&[Solid], Verdict::Keep),
            (&[Absent], background.clone()),
            (&[Waiting], background.clone()),
            (&[Absent, Waiting], background),
            (&[Absent, Solid], Verdict::Trim(vec![owner("1", true)])),
            (&[Waiting, Solid], Verdict::Trim(vec![owner("1", true)])),
            (&[Unknown], Verdict::Keep),
            (&[Absent, Unknown], Verdict::Keep),
        ];
        for (owners, verdict) in table {
            assert_eq!(judge(&held(owners)), *verdict, "{owners:?}");
        }
        let unread = Held { owners: vec![(owner("0", true), None)], ..Held::default() };
        assert_eq!(judge(&unread), Verdict::Keep);
    }

    #[test]
    fn the_manner_follows_from_what_waits_and_from_finalizers() {
        let waiting = || Held { has_dependents: true, ..held(&[Owner::Waiting]) };
        assert_eq!(judge(&waiting()), Verdict::Delete(Manner::Foreground));
        assert_eq!(judge(&Held { waiting_dependent: true, ..waiting() }), Verdict::Unblock);
        let unblocked = vec![(owner("0", false), Some(Owner::Waiting))];
        let unblocked = Held { waiting_dependent: true, owners: unblocked, ..waiting() };
        assert_eq!(judge(&unblocked), Verdict::Delete(Manner::Foreground));
        let absent = || Held { has_dependents: true, ..held(&[Owner::Absent]) };
        assert_eq!(judge(&absent()), Verdict::Delete(Manner::Background));
        assert_eq!(judge(&Held { foreground: true, ..absent() }), Verdict::Delete(Manner::Foreground));
        assert_eq!(
            judge(&Held { foreground: true, orphan: true, ..absent() }),
            Verdict::Delete(Manner::Orphan)
        );
    }

    #[test]
    fn an_owner_waits_for_those_that_block_it() {
        let dependent = |uid: &str, blocks, deleting| Dependent {
            object: Object { deleting, ..object(uid, &[owner("a", blocks)]) },
            blocks,
        };
        assert_eq!(wait(&[]), Wait::Release);
        assert_eq!(wait(&[dependent("b", false, false)]), Wait::Release);
        assert_eq!(wait(&[dependent("b", true, true)]), Wait::Until(vec![]));
        let two = [dependent("b", true, false), dependent("c", false, false)];
        assert_eq!(wait(&two), Wait::Until(vec!["b".into(), "c".into()]));
    }
}
