//! Runs the first example of each task page of the documentation as it is written.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hutch_testkit::cluster::{Cluster, Options};

use crate::harness::{Up, binary, succeeded};

/// Folder of the repository: working directory of the examples.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// First line of an example.
const FENCE: &str = "```sh\n";
/// Pages without an example: the index, and pages that are only looked up.
const REFERENCE: [&str; 4] =
    ["docs/README.md", "docs/benchmarks.md", "docs/differences.md", "docs/scanner.md"];

/// A task page, and a text that the output of its example contains.
type Page = (&'static str, &'static str);

/// Examples that need no server.
const LOCAL: [Page; 6] = [
    ("README.md", "2\n"),
    ("docs/cli.md", "exit status 3"),
    ("docs/credentials.md", "ghp_"),
    ("docs/images.md", "root:x:0:0"),
    ("docs/jail.md", "\nworkspace\n"),
    ("docs/policy.md", "no rule of policy \\\"packages\\\" allows it"),
];
/// Examples that need a running `hutch up`.
const SERVER: [Page; 8] = [
    ("docs/annotations.md", "\"agents.x-k8s.io/launch-type\":"),
    ("docs/api.md", "42\n"),
    ("docs/audit.md", " 0 faults"),
    ("docs/router.md", "\"stdout\":\"hello\\n\""),
    ("docs/sandboxd.md", "\"exitCode\":0"),
    ("docs/sleep.md", "awake\n"),
    ("docs/state.md", "first version\n"),
    ("docs/volumes.md", "shared text\n"),
];
/// Examples that need a running `hutch up` and the Python client.
const CLIENT: [Page; 1] = [("docs/clients.md", "hello\n")];
/// Examples that need a cluster.
const CLUSTER: [Page; 2] = [
    ("deploy/README.md", "agent-sandbox-controller"),
    ("docs/gateway.md", "deployment.apps/hutch-egress serverside-applied"),
];

#[test]
fn examples_without_a_server_run() {
    hutch_testkit::require!(root, python, curl);
    let folder = tempfile::tempdir().expect("tempdir");
    run_all(&LOCAL, folder.path(), &folder.path().join("no-kubeconfig"));
}

#[test]
fn examples_with_a_server_run() {
    hutch_testkit::require!(root, kubectl, python, curl);
    let up = Up::start(&[]);
    run_all(&SERVER, up.folder(), &up.kubeconfig());
}

#[test]
fn sandbox_of_the_readme_reaches_one_host() {
    hutch_testkit::require!(root, kubectl, python, curl);
    let text = std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("README.md");
    let mut blocks = text.split(FENCE).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    let example = blocks.find(|block| block.contains("hutch allow")).expect("an example");
    assert_eq!(example.lines().count(), 5, "{example}");
    let up = Up::start(&[]);
    let output = shell(example, &path_with_hutch(up.folder()), up.folder(), &up.kubeconfig());
    let printed = succeeded("README.md", &output);
    assert!(printed.contains("pypi.org:443: Allow") && printed.ends_with("closed\n"), "{printed}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("Could not resolve host: example.com"), "{errors}");
}

#[test]
fn examples_with_the_python_client_run() {
    hutch_testkit::require!(root, kubectl, sandbox_client);
    let up = Up::start(&[]);
    run_all(&CLIENT, up.folder(), &up.kubeconfig());
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_with_a_cluster_run() {
    hutch_testkit::require!(kubernetes, kubectl);
    let options = Options { crds: None, controllers: false, node: false };
    let cluster = Cluster::start(options).await.expect("a cluster");
    run_all(&CLUSTER, cluster.folder(), cluster.kubeconfig());
}

#[test]
fn every_task_page_has_an_example_that_runs() {
    let run: BTreeSet<String> = [&LOCAL[..], &SERVER, &CLIENT, &CLUSTER]
        .concat()
        .iter()
        .map(|(page, _)| (*page).to_owned())
        .collect();
    let mut pages = BTreeSet::from(["README.md".to_owned(), "deploy/README.md".to_owned()]);
    for entry in std::fs::read_dir(Path::new(ROOT).join("docs")).expect("docs") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        let page = format!("docs/{name}");
        if name.ends_with(".md") && !REFERENCE.contains(&page.as_str()) {
            pages.insert(page);
        }
    }
    assert_eq!(run, pages);
    for page in pages {
        example(&page);
    }
}

/// Runs the examples one after the other and checks their output. `folder` is for files of the test.
fn run_all(pages: &[Page], folder: &Path, kubeconfig: &Path) {
    let path = path_with_hutch(folder);
    for (page, expected) in pages {
        let output = shell(&example(page), &path, folder, kubeconfig);
        let printed = succeeded(page, &output);
        assert!(printed.contains(expected), "{page}: {expected:?} is not in\n{printed}");
    }
}

/// Runs an example.
fn shell(example: &str, path: &OsStr, folder: &Path, kubeconfig: &Path) -> Output {
    let mut sh = Command::new("sh");
    sh.args(["-euc", example]).current_dir(ROOT).env("PATH", path).env("KUBECONFIG", kubeconfig);
    sh.env("HUTCH_DATA", folder.join("data")).env("KUBECACHEDIR", folder.join("cache"));
    sh.env("PYTHONPATH", hutch_testkit::python_package("1.0.8")).stdin(Stdio::null());
    sh.output().expect("sh")
}

/// Returns the first fenced block of a page. It must be a shell script before the first table and the first section.
fn example(page: &str) -> String {
    let text = std::fs::read_to_string(Path::new(ROOT).join(page)).expect(page);
    let (before, rest) = text.split_once(FENCE).unwrap_or_else(|| panic!("{page}: no example"));
    for late in ["\n```", "\n|", "\n## "] {
        assert!(!before.contains(late), "{page} opens with something else than its example");
    }
    let (example, _) = rest.split_once("```").unwrap_or_else(|| panic!("{page}: the example does not end"));
    example.to_owned()
}

/// Returns a PATH on which `hutch` is the program under test.
fn path_with_hutch(folder: &Path) -> std::ffi::OsString {
    let programs = folder.join("programs");
    std::fs::create_dir(&programs).expect("a folder for programs");
    std::os::unix::fs::symlink(binary(), programs.join("hutch")).expect("a link");
    let ambient = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::iter::once(programs).chain(std::env::split_paths(&ambient)).collect();
    std::env::join_paths(folders).expect("a PATH")
}
