//! Messages of the condition that says which policies apply.

use std::sync::Arc;

use hutch_policy::{Level, Mode, opens};

/// Returns the message about levels that apply. `egress` is what those with rules for it allow.
pub fn egress_of(egress: &str, levels: &[Arc<Level>]) -> String {
    let names = |of: &dyn Fn(&Level) -> bool| {
        let levels = levels.iter().filter(|level| of(level));
        levels.map(|level| level.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let decides = |level: &Level| level.mode == Mode::Enforce && level.egress.is_some();
    let deciding = names(&decides);
    let mut message = match (opens(levels), deciding.is_empty()) {
        (true, _) => format!("{egress} as allowed by each of: {deciding}"),
        (false, true) => "no policy decides: no egress".to_owned(),
        (false, false) => {
            format!(
                "no egress: only an annotation of a claim or a Sandbox names {deciding}, which opens nothing"
            )
        }
    };
    for (what, names) in [
        ("without rules for egress", names(&|level| level.mode == Mode::Enforce && level.egress.is_none())),
        ("only observed by", names(&|level| level.mode == Mode::Observe)),
    ] {
        if !names.is_empty() {
            message.push_str(&format!("; {what}: {names}"));
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use hutch_policy::{Authority, Egress};

    use super::*;

    /// The message named a policy that opens no egress among those that allow it.
    #[test]
    fn message_says_where_nothing_opens_the_network() {
        let level =
            |authority, name: &str, egress: bool| Level::new(authority, name, egress.then(Egress::default));
        let web = || level(Authority::Namespace, "web", true);
        let files = || level(Authority::Cluster, "floor", false);
        let claim = || level(Authority::Claim, "mine", true);
        let watches = Level { mode: Mode::Observe, ..level(Authority::Cluster, "watches", true) };
        let nothing = "no egress: only an annotation of a claim or a Sandbox names mine, which opens nothing";
        for (levels, expected) in [
            (vec![web(), claim()], "egress as allowed by each of: web, mine"),
            (vec![web(), files()], "egress as allowed by each of: web; without rules for egress: floor"),
            (vec![claim()], nothing),
            (vec![files()], "no policy decides: no egress; without rules for egress: floor"),
            (vec![watches], "no policy decides: no egress; only observed by: watches"),
        ] {
            let levels: Vec<_> = levels.into_iter().map(Arc::new).collect();
            assert_eq!(egress_of("egress", &levels), expected);
        }
    }
}
