//! The program as the first process of a pid namespace: it reaps orphans.

use hutch_testkit::wait::until;

use crate::served::serve_under;

#[test]
fn as_first_process_it_reaps_orphans() {
    hutch_testkit::require!(root);
    let Some(unshare) = hutch_testkit::on_path("unshare") else {
        return hutch_testkit::note_skip("as_first_process_it_reaps_orphans", "needs unshare (util-linux)");
    };
    let unshare = unshare.to_str().unwrap();
    let served = serve_under(&[unshare, "--pid", "--fork", "--kill-child", "--mount-proc"]);
    assert_eq!(served.execute("sh -c 'echo $PPID'")["stdout"], "1\n");
    for _ in 0..20 {
        // The inner process outlives its parent and becomes an orphan.
        let done = served.execute("sh -c '(sleep 0.05 >/dev/null 2>&1 &)'");
        assert_eq!(done["exit_code"], 0, "{done}");
    }
    let dead = || served.execute("sh -c \"cat /proc/[0-9]*/stat | grep -c ') Z '\"")["stdout"].clone();
    until("the dead are buried", || dead() == "0\n");
    // Its own children keep their exit codes: the reaper leaves them alone.
    for number in 0..50 {
        assert_eq!(served.execute(&format!("sh -c '(true &); exit {number}'"))["exit_code"], number);
    }
}
