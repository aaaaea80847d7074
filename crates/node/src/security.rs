//! Security contexts of Pods and containers, read as a kubelet reads them: users, groups, capabilities, and what is refused.

use hutch_api::is_tracing;
use hutch_image::Resolved;
use hutch_jail::{Capabilities, User};
use k8s_openapi::api::core::v1::{
    Capabilities as Listed, Container, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};

/// Ids that a container has.
const IDS: u32 = 65536;

/// Refuses what would weaken the jail, or what it cannot provide.
pub(crate) fn check_pod(security: &PodSecurityContext) -> Result<(), String> {
    match security.fs_group_change_policy.as_deref() {
        None | Some("Always" | "OnRootMismatch") => {}
        Some(other) => {
            return Err(format!("fsGroupChangePolicy {other:?} is unknown: use Always or OnRootMismatch"));
        }
    }
    check_seccomp(security.seccomp_profile.as_ref())
}

/// As [`check_pod`], for a container.
pub(crate) fn check_container(security: &SecurityContext) -> Result<(), String> {
    if security.privileged == Some(true) {
        return Err("privileged is not supported: no sandbox holds a capability of the machine".into());
    }
    let added = security.capabilities.as_ref().and_then(|listed| listed.add.as_deref()).unwrap_or(&[]);
    let is_refused = |name: &&str| Capabilities::named(name).is_none() && !is_tracing(name);
    let refused: Vec<&str> = added.iter().map(String::as_str).filter(is_refused).collect();
    if !refused.is_empty() {
        let possible: Vec<&str> = Capabilities::ALL.names().collect();
        return Err(format!(
            "capabilities cannot be added ({}): a sandbox can have {}",
            refused.join(", "),
            possible.join(", ")
        ));
    }
    if security.proc_mount.as_deref().is_some_and(|kind| kind != "Default") {
        return Err("procMount other than Default is not supported".into());
    }
    check_seccomp(security.seccomp_profile.as_ref())
}

/// The filter of the jail is always there. It allows less than the default profile of a container runtime.
fn check_seccomp(profile: Option<&SeccompProfile>) -> Result<(), String> {
    match profile.map(|profile| profile.type_.as_str()) {
        None | Some("RuntimeDefault") => Ok(()),
        Some(other) => Err(format!(
            "seccompProfile {other} is not supported: every sandbox has the filter of its jail; use RuntimeDefault"
        )),
    }
}

/// Returns the capabilities of user 0 of a container. An image has all that a jail may give; what is built in, and shows
/// programs of this machine, has none.
pub(crate) fn capabilities(container: &Container, image: &Resolved) -> Capabilities {
    let built_in = !image.mounts.is_empty() || image.wants_sandboxd;
    let default = if built_in { Capabilities::NONE } else { Capabilities::ALL };
    let listed = container.security_context.as_ref().and_then(|security| security.capabilities.as_ref());
    listed.map_or(default, |listed| changed(default, listed))
}

/// Applies `drop: [ALL]`, then what is added, then what is dropped by name, as container runtimes do.
fn changed(default: Capabilities, listed: &Listed) -> Capabilities {
    let [added, dropped] = [&listed.add, &listed.drop].map(|list| list.as_deref().unwrap_or(&[]));
    let named = |list: &[String]| {
        let known = list.iter().filter_map(|name| Capabilities::named(name));
        known.fold(Capabilities::NONE, Capabilities::with)
    };
    let all = dropped.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
    let kept = if all { Capabilities::NONE } else { default };
    kept.with(named(added)).without(named(dropped))
}

/// Returns the user that a container runs as, and the home folder of that user.
pub(crate) fn user(
    spec: &PodSpec,
    container: &Container,
    image: &Resolved,
) -> Result<(User, String), String> {
    let of_pod = spec.security_context.as_ref();
    let own = container.security_context.as_ref();
    let named = own.and_then(|s| s.run_as_user).or_else(|| of_pod.and_then(|s| s.run_as_user));
    let gid = own.and_then(|s| s.run_as_group).or_else(|| of_pod.and_then(|s| s.run_as_group));
    let non_root = own.and_then(|s| s.run_as_non_root).or_else(|| of_pod.and_then(|s| s.run_as_non_root));
    if non_root == Some(true) {
        check_non_root(named, &image.config.user)?;
    }
    let text = named.map_or_else(|| image.config.user.clone(), |uid| uid.to_string());
    let account = image.account(&text).map_err(|e| e.to_string())?;
    let uid = id(i64::from(account.uid), "user")?;
    let gid = match gid {
        Some(gid) => id(gid, "runAsGroup")?,
        None => id(i64::from(account.gid), "group")?,
    };
    let mut groups = Vec::new();
    for group in of_pod.and_then(|s| s.supplemental_groups.as_deref()).unwrap_or(&[]) {
        groups.push(id(*group, "supplementalGroups")?);
    }
    groups.extend(fs_group(spec)?);
    // By default the groups of the user in the image are there too.
    if of_pod.and_then(|s| s.supplemental_groups_policy.as_deref()) != Some("Strict") {
        for group in account.groups {
            groups.push(id(i64::from(group), "a group of the user in the image,")?);
        }
    }
    groups.sort_unstable();
    groups.dedup();
    let home = account.home.unwrap_or_else(|| if uid == 0 { "/root" } else { "/" }.into());
    Ok((User { uid, gid, groups }, home))
}

/// The group of volumes that containers write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) group: u32,
    /// `true` for `fsGroupChangePolicy: OnRootMismatch`: a volume whose top has group and mode already is left as it is.
    pub(crate) on_root_mismatch: bool,
}

/// Returns the group that volumes are given to, and when it is applied to all that is in them.
pub(crate) fn volume_owner(spec: &PodSpec) -> Result<Option<Owner>, String> {
    let policy =
        spec.security_context.as_ref().and_then(|security| security.fs_group_change_policy.as_deref());
    let on_root_mismatch = policy == Some("OnRootMismatch");
    Ok(fs_group(spec)?.map(|group| Owner { group, on_root_mismatch }))
}

/// Returns the group that volumes are given to.
pub(crate) fn fs_group(spec: &PodSpec) -> Result<Option<u32>, String> {
    let group = spec.security_context.as_ref().and_then(|security| security.fs_group);
    group.map(|group| id(group, "fsGroup")).transpose()
}

fn id(value: i64, what: &str) -> Result<u32, String> {
    u32::try_from(value)
        .ok()
        .filter(|id| *id < IDS)
        .ok_or_else(|| format!("{what} {value} is out of range: a sandbox has the ids 0 to {}", IDS - 1))
}

/// Checks `runAsNonRoot`. The name of a user says nothing: the image decides which id it has.
fn check_non_root(run_as_user: Option<i64>, of_image: &str) -> Result<(), String> {
    if let Some(uid) = run_as_user {
        return match uid {
            0 => Err("container's runAsUser breaks non-root policy".into()),
            _ => Ok(()),
        };
    }
    let user = of_image.split(':').next().unwrap_or("");
    match user.parse::<u32>() {
        Ok(0) => Err("container has runAsNonRoot and image will run as root".into()),
        Ok(_) => Ok(()),
        Err(_) if user.is_empty() => Err("container has runAsNonRoot and image will run as root".into()),
        Err(_) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        )),
    }
}

#[cfg(test)]
mod tests {
    use hutch_image::{Hold, HostMount, ImageConfig};
    use serde_json::{Value, json};

    use super::*;

    /// An image with this user, whose accounts are in a folder.
    fn image(user: &str, folder: &std::path::Path) -> Resolved {
        let config = ImageConfig { user: user.into(), ..ImageConfig::default() };
        Resolved {
            id: "i".into(),
            layers: vec![folder.into()],
            mounts: Vec::new(),
            config,
            substituted: None,
            wants_sandboxd: false,
            hold: Hold::default(),
        }
    }

    fn container(security: Value) -> Container {
        serde_json::from_value(json!({"name": "c", "securityContext": security})).unwrap()
    }

    #[test]
    fn images_have_capabilities_and_what_is_built_in_has_none() {
        let image = image("", std::path::Path::new("/nowhere"));
        let mut built_in = image.clone();
        built_in.mounts.push(HostMount { source: "/usr".into(), target: "/usr".into() });
        let pause = Resolved { wants_sandboxd: true, ..image.clone() };
        let of = |image: &Resolved, listed: Value| {
            let made = capabilities(&container(json!({ "capabilities": listed })), image);
            made.names().collect::<Vec<_>>().join(" ")
        };
        let all = "CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETGID SETUID";
        for (listed, of_image, of_built_in) in [
            (json!(null), all, ""),
            (json!({}), all, ""),
            (json!({"drop": ["ALL"]}), "", ""),
            (json!({"drop": ["all"], "add": ["SETUID", "CHOWN"]}), "CHOWN SETUID", "CHOWN SETUID"),
            (json!({"drop": ["ALL", "KILL"], "add": ["KILL"]}), "", ""),
            (json!({"drop": ["ALL"], "add": ["SYS_PTRACE"]}), "", ""),
            (json!({"drop": ["KILL", "NET_RAW"]}), &all.replace("KILL ", ""), ""),
            (json!({"add": ["CHOWN"]}), all, "CHOWN"),
        ] {
            assert_eq!(of(&image, listed.clone()), of_image, "{listed}");
            assert_eq!(of(&built_in, listed.clone()), of_built_in, "{listed}");
            assert_eq!(of(&pause, listed.clone()), of_built_in, "{listed}");
        }
    }

    #[test]
    fn what_would_weaken_the_jail_is_refused_by_name() {
        for (security, word) in [
            (json!({"privileged": true}), "privileged"),
            (json!({"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}}), "(SYS_ADMIN)"),
            (json!({"capabilities": {"add": ["ALL"]}}), "(ALL)"),
            (json!({"capabilities": {"add": ["SETFCAP"]}}), "SETFCAP"),
            (json!({"procMount": "Unmasked"}), "procMount"),
            (json!({"seccompProfile": {"type": "Unconfined"}}), "seccompProfile Unconfined"),
            (json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a"}}), "Localhost"),
        ] {
            let error = check_container(&serde_json::from_value(security.clone()).unwrap()).unwrap_err();
            assert!(error.contains(word), "{security}: {error}");
        }
        let traced = json!({"capabilities": {"add": ["SYS_PTRACE"]}});
        assert_eq!(
            check_container(&serde_json::from_value(traced).unwrap()),
            Ok(()),
            "not given, with a warning"
        );
        let restricted = json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "seccompProfile": {"type": "RuntimeDefault"}});
        assert_eq!(check_container(&serde_json::from_value(restricted).unwrap()), Ok(()));
        let pod = |security: Value| check_pod(&serde_json::from_value(security).unwrap());
        assert!(pod(json!({"seccompProfile": {"type": "Unconfined"}})).is_err());
        assert_eq!(pod(json!({"seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 7})), Ok(()));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "constant names in a folder of the test")]
    fn users_and_groups_are_those_of_a_kubelet() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("etc")).unwrap();
        let passwd = "root:x:0:0::/root:/bin/sh\napp:x:70:71::/app:/bin/sh\n";
        std::fs::write(folder.path().join("etc/passwd"), passwd).unwrap();
        std::fs::write(folder.path().join("etc/group"), "app:x:71:\nssl:x:90:other,app\nmail:x:8:app\n")
            .unwrap();
        let made = |user_of_image: &str, pod: Value, own: Value| {
            let spec: PodSpec =
                serde_json::from_value(json!({"containers": [], "securityContext": pod})).unwrap();
            user(&spec, &container(own), &image(user_of_image, folder.path()))
                .map(|(user, home)| (user.uid, user.gid, user.groups, home))
        };
        let none = || json!({});
        assert_eq!(made("", none(), none()), Ok((0, 0, vec![], "/root".into())));
        assert_eq!(made("app", none(), none()), Ok((70, 71, vec![8, 90], "/app".into())));
        assert_eq!(made("", json!({"runAsUser": 70}), none()), Ok((70, 71, vec![8, 90], "/app".into())));
        let strict = json!({"runAsUser": 70, "supplementalGroups": [5], "supplementalGroupsPolicy": "Strict", "fsGroup": 9});
        assert_eq!(made("", strict, none()), Ok((70, 71, vec![5, 9], "/app".into())));
        let both = made("", json!({"runAsUser": 5, "fsGroup": 9}), json!({"runAsUser": 7, "runAsGroup": 8}));
        assert_eq!(both, Ok((7, 8, vec![9], "/".into())));
        for (user_of_image, pod, message) in [
            ("", json!({"runAsNonRoot": true}), "image will run as root"),
            ("0:70", json!({"runAsNonRoot": true}), "image will run as root"),
            ("app", json!({"runAsNonRoot": true}), "non-numeric user (app)"),
            ("70", json!({"runAsNonRoot": true, "runAsUser": 0}), "runAsUser breaks non-root policy"),
            ("", json!({"runAsUser": 70000}), "out of range"),
            ("", json!({"runAsUser": -1}), ""),
            ("", json!({"fsGroup": 65536}), "fsGroup 65536 is out of range"),
        ] {
            let error = made(user_of_image, pod.clone(), none()).unwrap_err();
            assert!(error.contains(message), "{pod}: {error}");
        }
        assert!(made("app", json!({"runAsNonRoot": true, "runAsUser": 70}), none()).is_ok());
        assert!(made("70:71", json!({"runAsNonRoot": true}), none()).is_ok());
    }
}
