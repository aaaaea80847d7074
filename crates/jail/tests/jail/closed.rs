//! Rules for files: what is closed cannot be reached in another way, and the rest works.

use std::fs;
use std::os::unix::fs::symlink;

use hutch_jail::{FileAccess, FileRule, FileRules, Mount, MountSource, Upper};

use crate::harness::{Bench, Caller, Report};

/// A jail with a writable root, a folder of the image, and `/work`, which other jails may write too.
fn bench() -> Bench {
    let mut bench = Bench::new(Caller::Root);
    let root = bench.folder.path().join("root");
    for folder in ["app/conf", "app/data/deep", "srv"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for file in ["app/conf/key", "app/data/deep/file", "app/main", "etc/token"] {
        fs::write(root.join(file), "SECRET\n").unwrap();
    }
    symlink("/app/conf", root.join("settings")).unwrap();
    fs::create_dir_all(bench.work().join("a/b")).unwrap();
    for file in ["a/b/key", "a/file", "other"] {
        fs::write(bench.work().join(file), "SECRET\n").unwrap();
    }
    bench.spec.root.upper = Upper::Memory { bytes: 16 << 20 };
    bench
}

fn close(bench: &mut Bench, rules: &[(&str, FileAccess)]) {
    let rule = |(path, access): &(&str, FileAccess)| FileRule {
        path: path.into(),
        access: *access,
        name: format!("rule {path}"),
    };
    bench.spec.files = FileRules { rules: rules.iter().map(rule).collect(), shared: vec!["/work".into()] };
}

fn run(bench: &Bench, script: &str) -> Report {
    let script = format!("exec 2>&1; {script}");
    let report = bench.launch(&["/bin/bash".into(), "-c".into(), script]);
    assert_eq!(report.error, None, "{report:?}");
    report
}

use FileAccess::{Hidden, Read, Write};

#[test]
fn hidden_path_is_empty_on_every_way_and_stays_in_its_place() {
    hutch_testkit::require!(root);
    let mut bench = bench();
    close(
        &mut bench,
        &[("/app/conf", Hidden), ("/etc/token", Hidden), ("/work/a/b", Hidden), ("/work/other", Hidden)],
    );
    let script = "cat /app/conf/key /etc/token /work/a/b/key /work/other /settings/key /proc/self/root/app/conf/key; \
        ls -A /app/conf /work/a/b; ln -s /work/a/b/key /tmp/link; cat /tmp/link; ln /work/other /work/hard; \
        cd /work/a; cat ./b/../b/key; cat /proc/self/cwd/b/key; \
        mv /work/a /work/moved; mv /work/a/b /work/a/c; mv /app /gone; rm -rf /work/a /work/other /app/conf /etc/token; \
        mkdir -p /work/a/b/new /app/conf/new; echo x > /work/other; echo x > /app/conf/new; \
        umount /work/a/b; mount -o remount,rw /work/a/b; chmod 777 /work/other /app/conf; \
        cat /work/moved/b/key /work/a/c/key /gone/conf/key /work/hard /work/other";
    let report = run(&bench, script);
    assert!(!report.stdout.contains("SECRET"), "{report:?}");
    assert_eq!(fs::read_to_string(bench.work().join("a/b/key")).unwrap(), "SECRET\n");
    assert_eq!(fs::read_to_string(bench.work().join("other")).unwrap(), "SECRET\n");
    let names = fs::read_dir(bench.work()).unwrap().count();
    assert_eq!(names, 2, "nothing is made or moved");
    // What is not named works.
    let mut bench = self::bench();
    close(&mut bench, &[("/app/conf", Hidden), ("/work/a/b", Hidden)]);
    let script = "cat /app/main /work/other; echo x > /work/a/new && cat /work/a/new; echo y > /app/new && cat /app/new; \
        mkdir /work/folder && mv /work/folder /work/renamed && ls -d /work/renamed; rm /work/a/file && ls /work/a";
    let report = run(&bench, script);
    assert_eq!(report.stdout, "SECRET\nSECRET\nx\ny\n/work/renamed\nb\nnew\n");
}

#[test]
fn read_only_path_can_be_read_and_a_folder_in_it_can_be_written() {
    hutch_testkit::require!(root);
    let mut bench = bench();
    close(
        &mut bench,
        &[
            ("/work", Read),
            ("/work/a/b", Write),
            ("/app", Read),
            ("/app/data/deep", Write),
            ("/app/conf", Hidden),
        ],
    );
    let script = "cat /work/other /app/main /app/data/deep/file; ls -A /app/conf; \
        for file in /work/other /work/a/file /work/new /app/main /app/new /app/data/new /app/conf/new; do \
            (echo x > $file) 2>/dev/null && echo written $file; done; \
        rm -f /work/other /app/main; mv /work/a/file /work/a/b/file; mv /app /gone; mv /app/data /app/gone; touch -a /app/main; \
        for file in /work/a/b/key /work/a/b/new /app/data/deep/file /app/data/deep/new; do \
            (echo x > $file) && echo written $file; done; true";
    let report = run(&bench, script);
    let lines: Vec<&str> = report.stdout.lines().filter(|line| !line.contains(": ")).collect();
    let written = ["/work/a/b/key", "/work/a/b/new", "/app/data/deep/file", "/app/data/deep/new"];
    let written: Vec<String> = written.iter().map(|file| format!("written {file}")).collect();
    let expected: Vec<&str> = ["SECRET"; 3].into_iter().chain(written.iter().map(String::as_str)).collect();
    assert_eq!(lines, expected, "{report:?}");
    assert_eq!(fs::read_to_string(bench.work().join("other")).unwrap(), "SECRET\n");
}

#[test]
fn exception_in_a_hidden_folder_is_shown_and_nothing_else() {
    hutch_testkit::require!(root);
    for upper in [Upper::Memory { bytes: 16 << 20 }, Upper::ReadOnly] {
        let mut bench = bench();
        bench.spec.root.upper = upper;
        close(
            &mut bench,
            &[
                ("/work", Hidden),
                ("/work/a/file", Read),
                ("/work/a/b", Write),
                ("/app", Hidden),
                ("/app/data/deep", Read),
            ],
        );
        let script = "find /work /app | sort; cat /work/a/file /app/data/deep/file; (echo x > /work/a/b/key) && cat /work/a/b/key; \
        for file in /work/new /work/a/new /work/a/file /app/new /app/data/new /app/data/deep/new; do \
            (echo x > $file) 2>/dev/null && echo written $file; done; true";
        let report = run(&bench, script);
        let expected = "/app\n/app/data\n/app/data/deep\n/app/data/deep/file\n/work\n/work/a\n/work/a/b\n/work/a/b/key\n\
        /work/a/file\nSECRET\nSECRET\nx\n";
        assert_eq!(report.stdout, expected, "{report:?}");
    }
}

#[test]
fn rule_holds_for_mounts_above_and_below_its_path() {
    hutch_testkit::require!(root);
    let mut bench = bench();
    let inner = bench.folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("file"), "SECRET\n").unwrap();
    let mut mount = |target: &str, read_only| {
        let source = MountSource::Bind(inner.clone());
        bench.spec.mounts.push(Mount { source, target: target.into(), read_only });
    };
    for (target, read_only) in [
        ("/srv/one/volume", false),
        ("/srv/two/volume", false),
        ("/srv/three/volume", true),
        ("/work/volume", false),
    ] {
        mount(target, read_only);
    }
    close(
        &mut bench,
        &[
            ("/srv/one", Hidden),
            ("/srv/two", Read),
            ("/srv/three/volume", Write),
            ("/srv/two/volume/file", Hidden),
            ("/work", Read),
        ],
    );
    let script = "ls -A /srv/one; cat /srv/two/volume/file; cat /srv/three/volume/file /work/volume/file; \
        for folder in /srv/one /srv/two /srv/two/volume /srv/three/volume /work /work/volume; do \
            (echo x > $folder/new) 2>/dev/null && echo written $folder; done; echo x > /srv/new && cat /srv/new";
    let report = run(&bench, script);
    let lines: Vec<&str> = report.stdout.lines().filter(|line| !line.contains(": ")).collect();
    assert_eq!(lines, ["SECRET", "SECRET", "x"], "{report:?}");
    assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
}

#[test]
fn missing_path_cannot_be_made() {
    hutch_testkit::require!(root);
    let mut bench = bench();
    close(
        &mut bench,
        &[("/work/.env", Hidden), ("/work/new/deep", Read), ("/opt/app/key", Hidden), ("/work/out", Write)],
    );
    let script = "cat /work/.env /opt/app/key; cat /work/new/deep; \
        for path in /work/.env /work/new/deep /opt/app/key; do \
            (echo x > $path) 2>/dev/null && echo written $path; rm -rf $path; mkdir $path; mv /work/other $path; \
            (echo x > $path/y) 2>/dev/null && echo written $path; done; \
        mv /work/new /work/gone; mv /opt /gone; ls -A /work; echo x > /work/new/file && cat /work/new/file";
    let report = run(&bench, script);
    let lines: Vec<&str> = report.stdout.lines().filter(|line| !line.contains(": ")).collect();
    assert_eq!(lines, [".env", "a", "new", "other", "x"], "{report:?}");
    // In a root that is never written, it cannot be made.
    bench.spec.root.upper = Upper::ReadOnly;
    close(&mut bench, &[("/opt/app/key", Hidden), ("/etc/token", Hidden)]);
    let report = run(&bench, "ls /opt; cat /etc/token; mkdir /opt; echo over");
    assert!(report.stdout.ends_with("over\n") && !report.stdout.contains("SECRET"), "{report:?}");
}

#[test]
fn link_of_the_image_closes_what_it_leads_to_and_opens_nothing() {
    hutch_testkit::require!(root);
    let mut bench = bench();
    close(&mut bench, &[("/settings/key", Hidden), ("/app", Read)]);
    let script = "cat /app/conf/key; cat /settings/key; rm /settings; cat /app/conf/key; (echo x > /app/main) 2>/dev/null || echo closed";
    let report = run(&bench, script);
    assert!(!report.stdout.contains("SECRET") && report.stdout.ends_with("closed\n"), "{report:?}");
    // By its own path the folder is hidden, so the link must not show it.
    close(&mut bench, &[("/app", Hidden), ("/settings", Read), ("/settings/key", Write)]);
    let report = run(&bench, "cat /app/conf/key /settings/key; ls -A /app; echo over");
    assert!(!report.stdout.contains("SECRET") && report.stdout.ends_with("over\n"), "{report:?}");
}

/// Found by review: a snapshot's program put a folder in the place of a link of the image, and the rule of the next jail was for
/// that folder, not for the volume to which the link led.
#[test]
fn rule_holds_where_the_links_of_the_image_lead_whatever_an_earlier_jail_put_there() {
    hutch_testkit::require!(root);
    let mut bench = bench();
    let root = bench.folder.path().join("root");
    symlink("/work/a", root.join("volume")).unwrap();
    symlink("volume/b", root.join("again")).unwrap();
    bench.spec.root.upper = Upper::Dir(bench.folder.path().join("upper"));
    let script = "rm /volume /again && mkdir /volume && touch /volume/file && ln -s /tmp /again && rm -r /app/conf && \
        ln -s data /app/conf && ls -d /volume /again";
    assert_eq!(run(&bench, script).stdout, "/again\n/volume\n");
    close(&mut bench, &[("/volume/file", Hidden), ("/again/key", Read), ("/settings/key", Hidden)]);
    let script = "cat /work/a/file /volume/file /app/data/key /settings/key; cat /work/a/b/key; \
        (echo x > /work/a/b/key) 2>/dev/null || echo closed";
    let report = run(&bench, script);
    let lines: Vec<&str> = report.stdout.lines().filter(|line| !line.contains(": ")).collect();
    assert_eq!(lines, ["SECRET", "closed"], "{report:?}");
}

#[test]
fn rule_that_cannot_be_enforced_is_refused_by_its_name() {
    hutch_testkit::require!(root);
    let mut bench = bench();
    let root = bench.folder.path().join("root");
    symlink("a", bench.work().join("link")).unwrap();
    symlink("/proc/self", root.join("process")).unwrap();
    symlink("/", root.join("everything")).unwrap();
    symlink("/loop", root.join("loop")).unwrap();
    symlink("/nowhere/../x", root.join("dangling")).unwrap();
    for (path, reason) in [
        ("/work/link/b", "/work/link is a symbolic link in a volume"),
        ("/process/environ", "/proc, where nothing can be closed"),
        ("/everything", "cannot be closed as a whole"),
        ("/loop", "cannot be looked up"),
        ("/dangling", "leads nowhere"),
        ("/work/other/x", "/work/other is not a folder"),
    ] {
        close(&mut bench, &[("/etc/token", Hidden), (path, Hidden)]);
        let report = bench.launch(&["/bin/true".into()]);
        let error = report.error.unwrap_or_default();
        assert!(error.starts_with(&format!("rule {path}: ")) && error.contains(reason), "{path}: {error}");
    }
    for mount in bench.spec.mounts.iter_mut().filter(|mount| mount.target.ends_with("work")) {
        mount.read_only = true;
    }
    close(&mut bench, &[("/work/missing", Read)]);
    let error = bench.launch(&["/bin/true".into()]).error.unwrap_or_default();
    assert!(error.contains("/work/missing does not exist in a read-only volume"), "{error}");
}
