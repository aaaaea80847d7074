use super::*;

fn counts(words: usize, clauses: usize) -> BTreeMap<String, Count> {
    BTreeMap::from([("crates/a".to_owned(), Count { words, clauses })])
}

fn breaches(found: (usize, usize), ceiling: (usize, usize)) -> usize {
    let findings = Findings { counts: counts(found.0, found.1), ..Findings::default() };
    compare(&findings, &counts(ceiling.0, ceiling.1)).len()
}

#[test]
fn count_must_equal_its_ceiling() {
    assert_eq!(breaches((3, 1), (3, 1)), 0);
    assert_eq!(breaches((4, 1), (3, 1)), 1);
    assert_eq!(breaches((3, 0), (3, 1)), 1);
    let findings = Findings { counts: counts(1, 0), ..Findings::default() };
    assert_eq!(compare(&findings, &BTreeMap::new()).len(), 1);
    assert_eq!(compare(&Findings::default(), &counts(1, 0)).len(), 1);
}

#[test]
fn ceilings_are_lowered_and_never_raised() {
    let mut ceilings = counts(3, 5);
    lower(&mut ceilings, &counts(9, 2));
    assert_eq!(ceilings, counts(3, 2));
    lower(&mut ceilings, &BTreeMap::new());
    assert_eq!(ceilings, BTreeMap::new());
}

#[test]
fn table_is_read_as_it_is_written() {
    assert_eq!(parse(&render(&counts(7, 2))).unwrap(), counts(7, 2));
    assert!(parse("crates/a 1").is_err());
}

#[test]
fn file_belongs_to_its_crate_or_to_markdown() {
    assert_eq!(folder_of("crates/api/src/lib.rs").as_deref(), Some("crates/api"));
    assert_eq!(folder_of("crates/api/README.md").as_deref(), Some("Markdown"));
    assert_eq!(folder_of("deploy/rbac.yaml").as_deref(), Some("deploy"));
    assert_eq!(folder_of("crates/api/Cargo.toml"), None);
}

#[test]
fn hits_name_file_line_and_replacement() {
    let (count, hits) = hits_of("crates/a/src/b.rs", "\n/// What nobody reads.\nfn a() {}\n");
    assert_eq!(count, Count { words: 1, clauses: 1 });
    assert_eq!(hits[0], "crates/a/src/b.rs:2: \"nobody\"; write name the person, program or object");
    assert_eq!(hits_of("docs/jail.md", "| privileged | asks for all rights |").0, Count::default());
    assert_eq!(hits_of("deploy/a.yaml", "a: nobody\nb: c # nobody\n").0.words, 1);
}
