//! Rights of user 0 of a jail with capabilities, and of the other users.

use std::os::unix::fs::MetadataExt;

use hutch_jail::{Capabilities, Ids, Profile};

use crate::harness::{BASE, Bench, Caller, Report};

const NONE: &str = "0000000000000000";

/// A jail whose user 0 has these, and in which a set-user-id bit can be set.
fn bench(capabilities: Capabilities) -> Bench {
    let mut bench = Bench::new(Caller::Root);
    bench.spec.capabilities = capabilities;
    bench.spec.deny_set_id_bits = false;
    bench
}

fn shell(bench: &Bench, script: &str) -> Report {
    bench.launch(&["/bin/sh".into(), "-ec".into(), script.into()])
}

/// Sets of the process that prints its status, in the order of the kernel: `CapInh`, `CapPrm`, `CapEff`, `CapBnd`, `CapAmb`.
fn sets(status: &str) -> Vec<String> {
    let lines = status.lines().filter(|line| line.starts_with("Cap"));
    lines.filter_map(|line| Some(line.split_once(':')?.1.trim().to_owned())).collect()
}

#[test]
fn root_inside_gives_files_away_and_becomes_their_owner() {
    hutch_testkit::require!(root);
    let script = "mkdir /work/data; chown -R 70:71 /work/data; chmod 700 /work/data\n\
        exec setpriv --reuid 70 --regid 71 --clear-groups sh -ec 'touch /work/data/file; id -u; cat /proc/self/status'";
    let bench = bench(Capabilities::ALL);
    let report = shell(&bench, script);
    assert_eq!(report.ended.as_deref(), Some("Exited(0)"), "{report:?}");
    assert!(report.stdout.starts_with("70\n"), "{report:?}");
    let found = sets(&report.stdout);
    assert_eq!(found[1..3], [NONE, NONE], "a user that is not 0 has none: {found:?}");
    // Ids on disk are those inside, whatever range the jail has.
    let file = std::fs::metadata(bench.work().join("data/file")).unwrap();
    assert_eq!((file.uid(), file.gid()), (70, 71));
    let mut other = self::bench(Capabilities::NONE);
    other.spec.ids = Ids::Range { base: BASE + 0x10_0000 };
    other.spec.mounts.retain(|mount| mount.target != *"/work");
    other.spec.mounts.extend(bench.spec.mounts.iter().filter(|mount| mount.target == *"/work").cloned());
    let listed = shell(&other, "stat -c %u:%g /work/data");
    assert_eq!(listed.stdout.trim(), "70:71", "{listed:?}");
    let refused = shell(&other, "touch /work/mine; chown 70 /work/mine");
    assert!(refused.stderr.contains("Operation not permitted"), "{refused:?}");
}

#[test]
fn process_of_another_user_has_no_capability_and_no_bounding_set() {
    hutch_testkit::require!(root);
    let bench = bench(Capabilities::ALL);
    let status = |user: u32| {
        let report = bench.launch_as(&["/bin/cat".into(), "/proc/self/status".into()], user);
        assert_eq!(report.error, None, "{report:?}");
        sets(&report.stdout)
    };
    assert_eq!(status(70), [NONE; 5]);
    let all = "00000000000004fb";
    assert_eq!(status(0), [NONE, all, all, all, NONE]);
}

#[test]
fn root_has_exactly_what_was_given() {
    hutch_testkit::require!(root);
    let chown = Capabilities::named("CHOWN").unwrap();
    let report = shell(&bench(chown), "touch /work/a; chown 70 /work/a; cat /proc/self/status");
    let one = "0000000000000001";
    assert_eq!(sets(&report.stdout), [NONE, one, one, one, NONE], "{report:?}");
    let report = shell(&bench(chown), "setpriv --reuid 70 true");
    assert!(report.stderr.contains("Operation not permitted"), "{report:?}");
}

#[test]
fn set_user_id_program_changes_no_user() {
    hutch_testkit::require!(root);
    let script = "cp /usr/bin/id /work/id; chmod 4755 /work/id; stat -c %a /work/id\n\
        exec setpriv --reuid 70 --regid 70 --clear-groups /work/id -u";
    let report = shell(&bench(Capabilities::ALL), script);
    assert_eq!(report.stdout, "4755\n70\n", "{report:?}");
}

#[test]
fn capabilities_without_a_range_of_ids_are_refused() {
    let mut bench = Bench::new(Caller::Root);
    bench.spec.capabilities = Capabilities::ALL;
    assert_eq!(bench.spec.check(), Ok(()));
    bench.spec.profile = Profile::Runtime;
    assert!(bench.spec.check().is_err());
    let mut bench = Bench::new(Caller::Ordinary);
    bench.spec.capabilities = Capabilities::ALL;
    assert!(bench.spec.check().is_err());
}
