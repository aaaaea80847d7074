//! For what is missing: what that costs, and how to get it.

use super::{Facts, Missing};

fn entry(what: impl Into<String>, costs: &str, remedy: &str) -> Missing {
    Missing { what: what.into(), costs: costs.to_owned(), remedy: remedy.to_owned() }
}

/// A pure function of the facts.
pub(super) fn missing(facts: &Facts) -> Vec<Missing> {
    let mut list = Vec::new();
    for namespace in facts.namespaces.iter().filter(|namespace| !namespace.available) {
        list.push(entry(
            format!("{} namespace", namespace.name),
            "no native jail can be made: `hutch run` and Pods of the handler `hutch` fail",
            "allow it: sysctl user.max_user_namespaces (and the one of this namespace) above 0, \
             kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 or an \
             AppArmor profile (Ubuntu); inside a container it has to be allowed by that container's seccomp profile",
        ));
    }
    if !facts.unprivileged_user_namespaces && facts.namespaces.iter().all(|namespace| namespace.available) {
        list.push(entry(
            "user namespaces for ordinary users",
            "`hutch run` works for root only",
            "kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)",
        ));
    }
    cgroups(facts, &mut list);
    confinement(facts, &mut list);
    egress(facts, &mut list);
    files(facts, &mut list);
    let problem = facts.runsc.as_ref().map(|runsc| runsc.problem.as_deref());
    if problem != Some(None) {
        let problem = problem.flatten().map(|problem| format!(": {problem}"));
        list.push(entry(
            format!("gVisor (runsc){}", problem.unwrap_or_default()),
            "Pods with runtimeClassName gvisor stay Pending, and `hutch run --isolation gvisor` is refused",
            "install runsc from gvisor.dev/docs/user_guide/install (the package of Debian 12 is too old), or map the \
             class to the native jail: hutch up --runtime-class gvisor=hutch",
        ));
    }
    if !facts.kvm {
        list.push(entry(
            "/dev/kvm",
            "nothing now; gVisor's faster platform and virtual machines need it",
            "switch virtualisation on in the firmware or in the cloud's machine type, and join the group kvm",
        ));
    }
    if let Some(reason) = &facts.cgroups.freezer {
        list.push(entry(
            format!("freezer of cgroups ({reason})"),
            "idle Sandboxes keep using the processor: hutch.dev/idle-after has no effect",
            "run as root, and mount cgroups writable",
        ));
    }
    if facts.swap_bytes == 0 {
        list.push(entry(
            "swap",
            "idle memory stays in RAM: hutch.dev/page-out-after has no effect",
            "add a swap file or zram (mkswap, swapon), on an encrypted disk: it holds the memory of sandboxes as it is",
        ));
    }
    if !facts.root {
        list.push(entry(
            "root",
            "`hutch up` does not start; files of a jail have one owner; no Pod can have users of its own",
            "sudo hutch ...",
        ));
    }
    list
}

fn cgroups(facts: &Facts, list: &mut Vec<Missing>) {
    for controller in facts.cgroups.controllers.iter().filter(|controller| !controller.usable) {
        let costs = match controller.name {
            "cpu" => "--cpus and CPU limits of containers are refused",
            "memory" => "--memory and memory limits of containers are refused",
            _ => "--pids is refused",
        };
        let why = controller.reason.as_deref().unwrap_or("it is not mounted");
        list.push(entry(
            format!("{} limits ({why})", controller.name),
            costs,
            "run as root; or, with cgroup version 2, have a group delegated: systemd-run --user --scope \
             -p Delegate=yes hutch ...; version 2 comes with systemd.unified_cgroup_hierarchy=1 on the kernel's \
             command line",
        ));
    }
}

fn confinement(facts: &Facts, list: &mut Vec<Missing>) {
    match facts.landlock {
        None => list.push(entry(
            "Landlock",
            "jails lack their second wall around files; the first (mounts) holds",
            "a kernel of 5.19 or newer with CONFIG_SECURITY_LANDLOCK, and landlock in the kernel's lsm= list",
        )),
        Some(abi @ ..6) => list.push(entry(
            format!("Landlock version 6 (here: {abi})"),
            "signals and abstract sockets are confined by namespaces alone",
            "a kernel of 6.12 or newer",
        )),
        Some(_) => {}
    }
    if !facts.seccomp {
        list.push(entry(
            "seccomp filters",
            "no native jail can be made",
            "a kernel with CONFIG_SECCOMP_FILTER; inside a container it must allow the call seccomp",
        ));
    }
}

fn egress(facts: &Facts, list: &mut Vec<Missing>) {
    if facts.namespaces.iter().any(|namespace| !namespace.available) {
        return;
    }
    if !facts.egress {
        list.push(entry(
            "nft tproxy",
            "no policy can open a host: `hutch run` with --allow or --policy fails, and Pods reach nothing",
            "a kernel with CONFIG_NFT_TPROXY and CONFIG_NF_TABLES_INET (modprobe nft_tproxy)",
        ));
    } else if !facts.egress_for_ordinary_users && facts.unprivileged_user_namespaces {
        list.push(entry(
            "nft tproxy for ordinary users",
            "`hutch run` with --allow or --policy works for root only",
            "load the modules of the kernel as root: modprobe nft_tproxy",
        ));
    }
}

fn files(facts: &Facts, list: &mut Vec<Missing>) {
    if facts.idmapped_mounts == Some(false) {
        list.push(entry(
            "idmapped mounts",
            "a folder of the host cannot be writable in a jail of root (--workspace, volumes)",
            "a kernel of 5.12 or newer (6.3 for folders in memory) and a file system that can: ext4, xfs, btrfs, \
             tmpfs",
        ));
    }
    if !facts.overlayfs {
        list.push(entry(
            "overlayfs",
            "images have to be read-only, and jails cannot share one",
            "a kernel of 5.11 or newer with CONFIG_OVERLAY_FS (modprobe overlay)",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::missing;

    fn complete() -> Facts {
        Facts {
            kernel: "6.18".into(),
            architecture: "x86_64",
            root: true,
            namespaces: vec![Namespace { name: "user", available: true }],
            unprivileged_user_namespaces: true,
            cgroups: Cgroups {
                version: "v2",
                controllers: vec![ControllerFact {
                    name: "memory",
                    version: Some("v2"),
                    usable: true,
                    reason: None,
                }],
                freezer: None,
            },
            landlock: Some(7),
            seccomp: true,
            idmapped_mounts: Some(true),
            overlayfs: true,
            egress: true,
            egress_for_ordinary_users: true,
            runsc: Some(Runsc {
                path: "/usr/bin/runsc".into(),
                version: None,
                platforms: Vec::new(),
                networks: Vec::new(),
                checkpoint: false,
                problem: None,
            }),
            kvm: true,
            swap_bytes: 1 << 30,
            missing: Vec::new(),
        }
    }

    #[test]
    fn nothing_is_missing_where_all_is_there() {
        assert_eq!(missing(&complete()), []);
    }

    #[test]
    fn each_thing_that_is_missing_is_named() {
        type Change = fn(&mut Facts);
        let table: [(Change, &str); 16] = [
            (|f| f.root = false, "root"),
            (|f| f.namespaces[0].available = false, "user namespace"),
            (|f| f.unprivileged_user_namespaces = false, "user namespaces for ordinary users"),
            (|f| f.cgroups.controllers[0].usable = false, "memory limits (it is not mounted)"),
            (|f| f.landlock = None, "Landlock"),
            (|f| f.landlock = Some(3), "Landlock version 6 (here: 3)"),
            (|f| f.seccomp = false, "seccomp filters"),
            (|f| f.idmapped_mounts = Some(false), "idmapped mounts"),
            (|f| f.overlayfs = false, "overlayfs"),
            (|f| f.egress = false, "nft tproxy"),
            (|f| f.egress_for_ordinary_users = false, "nft tproxy for ordinary users"),
            (|f| f.runsc = None, "gVisor (runsc)"),
            (|f| f.runsc.as_mut().unwrap().problem = Some("too old".into()), "gVisor (runsc): too old"),
            (|f| f.kvm = false, "/dev/kvm"),
            (|f| f.cgroups.freezer = Some("none".into()), "freezer of cgroups (none)"),
            (|f| f.swap_bytes = 0, "swap"),
        ];
        for (change, what) in table {
            let mut facts = complete();
            change(&mut facts);
            let found: Vec<String> = missing(&facts).into_iter().map(|entry| entry.what).collect();
            assert_eq!(found, [what]);
        }
    }
}
