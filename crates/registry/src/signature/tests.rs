use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

/// A repository with an image that cosign v3.1.3 has signed with each key, in both forms: `cosign sign --key KEY.key
/// --use-signing-config=false --tlog-upload=false --new-bundle-format=true|false`. The key `attester` has only attested
/// something about it, with `cosign attest --type custom`.
#[derive(Deserialize)]
struct Recorded {
    tags: BTreeMap<String, String>,
    manifests: BTreeMap<String, String>,
    blobs: BTreeMap<String, String>,
    keys: BTreeMap<String, String>,
}

impl Recorded {
    fn read() -> Recorded {
        serde_json::from_str(include_str!("../../tests/cosign/recorded.json")).unwrap()
    }

    fn signed(&self) -> Digest {
        Digest::parse(&self.tags["v1"]).unwrap()
    }

    /// All signatures and attestations.
    fn evidence(&self) -> Vec<Evidence> {
        let bundles = self.blobs.values().map(|blob| STANDARD.decode(blob).unwrap());
        let mut found: Vec<_> = bundles.flat_map(|blob| evidence_of(&blob)).collect();
        for manifest in self.manifests.values() {
            let manifest: serde_json::Value = serde_json::from_str(manifest).unwrap();
            for layer in manifest["layers"].as_array().into_iter().flatten() {
                let signature = &layer["annotations"]["dev.cosignproject.cosign/signature"];
                if let Some(signature) = signature.as_str().filter(|signature| !signature.is_empty()) {
                    let payload = self.blobs[layer["digest"].as_str().unwrap()].clone();
                    found.push(Evidence { form: Form::Simple, payload, signature: signature.into() });
                }
            }
        }
        found
    }
}

fn name(text: &str) -> ImageName {
    ImageName::parse(text).unwrap()
}

#[test]
fn signature_of_each_key_counts_in_each_form() {
    let recorded = Recorded::read();
    let evidence = recorded.evidence();
    assert_eq!(evidence.len(), 11);
    for (key, pem) in &recorded.keys {
        let signers = Signers::of_all(pem);
        for form in [Form::Simple, Form::Envelope] {
            let of_form = evidence.iter().filter(|evidence| evidence.form == form);
            let valid: Vec<_> = of_form.filter_map(|e| signers.check(&name("a"), e).ok()).collect();
            let expected = if key == "attester" { vec![] } else { vec![vec![recorded.signed()]] };
            assert_eq!(valid, expected, "{key} {form:?}");
        }
    }
}

#[test]
fn attestation_is_no_signature_although_its_key_is_right() {
    let recorded = Recorded::read();
    let signers = Signers::of_all(&recorded.keys["attester"]);
    let errors = recorded
        .evidence()
        .iter()
        .map(|e| signers.check(&name("a"), e).unwrap_err().to_string())
        .collect::<Vec<_>>();
    let other = errors.iter().filter(|error| error.contains("what is signed is not that an image is signed"));
    assert_eq!(other.count(), 1, "{errors:?}");
}

#[test]
fn any_changed_bit_invalidates_a_signature() {
    let recorded = Recorded::read();
    let signers = Signers::of_all(&recorded.keys["p256"]);
    let valid = recorded.evidence().into_iter().filter(|e| signers.check(&name("a"), e).is_ok());
    for evidence in valid {
        let (payload, signature) = (STANDARD.decode(&evidence.payload), STANDARD.decode(&evidence.signature));
        let (payload, signature) = (payload.unwrap(), signature.unwrap());
        for at in 0..payload.len() + signature.len() {
            for bit in 0..8 {
                let (mut payload, mut signature) = (payload.clone(), signature.clone());
                match at.checked_sub(payload.len()) {
                    None => payload[at] ^= 1 << bit,
                    Some(at) => signature[at] ^= 1 << bit,
                }
                let (payload, signature) = (STANDARD.encode(payload), STANDARD.encode(signature));
                let changed = Evidence { form: evidence.form, payload, signature };
                assert!(signers.check(&name("a"), &changed).is_err(), "{at} {bit}");
            }
        }
        // The same bytes count in no other form.
        let other = if evidence.form == Form::Simple { Form::Envelope } else { Form::Simple };
        assert!(signers.check(&name("a"), &Evidence { form: other, ..evidence }).is_err());
    }
}

#[test]
fn longest_prefix_decides_which_keys_count() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = Recorded::read();
    for (key, pem) in &recorded.keys {
        std::fs::write(folder.path().join(key), pem).unwrap();
    }
    let key = |name: &str| folder.path().join(name).display().to_string();
    let text = format!(
        "signatures:\n- {{prefix: '*', keys: ['{}']}}\n- {{prefix: ghcr.io/org, keys: ['{}', '{}']}}\n\
         - {{prefix: ghcr.io/org/free, required: false}}\n",
        key("p256"),
        key("rsa"),
        key("p384"),
    );
    let signers = Signers::read(&Config::parse(&text).unwrap()).unwrap();
    let evidence = recorded.evidence();
    for (image, keys) in [
        ("python", &["p256"][..]),
        ("ghcr.io/org/app", &["rsa", "p384"]),
        ("ghcr.io/organization/app", &["p256"]),
    ] {
        assert!(signers.cover(&name(image)));
        for (key, pem) in &recorded.keys {
            let own = Signers::of_all(pem);
            let own = evidence.iter().filter(|e| own.check(&name("a"), e).is_ok());
            for evidence in own {
                assert_eq!(
                    signers.check(&name(image), evidence).is_ok(),
                    keys.contains(&key.as_str()),
                    "{image} {key}"
                );
            }
        }
    }
    assert!(!signers.cover(&name("ghcr.io/org/free/app")));
    assert!(evidence.iter().all(|e| signers.check(&name("ghcr.io/org/free/app"), e).is_err()));
}

#[test]
fn wrong_rules_and_keys_are_refused_by_their_field() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (none, broken) = (
        file("none", "hello\n"),
        file("broken", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
    );
    for (rule, expected) in [
        ("{prefix: ghcr.io}".to_owned(), "signatures[0].keys: names no key"),
        ("{prefix: ghcr.io, keys: [a.pub]}".into(), "signatures[0].keys[0]: must be an absolute path"),
        ("{prefix: ghcr.io, keys: [/a], required: false}".into(), "signatures[0].keys: must be empty"),
        ("{prefix: python, required: false}".into(), "signatures[0].prefix: \"python\" names no registry"),
        ("{prefix: ghcr.io, required: false, key: /a}".into(), "images.yaml: "),
        (
            "{prefix: ghcr.io, required: false}\n- {prefix: ghcr.io/, required: false}".into(),
            "signatures[1].prefix: occurs twice",
        ),
        ("{prefix: ghcr.io, keys: [/missing.pub]}".into(), "signatures[0].keys[0]: cannot open /missing.pub"),
        (format!("{{prefix: ghcr.io, keys: ['{none}']}}"), "has no public key in PEM"),
        (format!("{{prefix: ghcr.io, keys: ['{broken}']}}"), "has a key that is not supported"),
    ] {
        let config = Config::parse(&format!("signatures:\n- {rule}\n"));
        let error = config.and_then(|config| Signers::read(&config)).unwrap_err().to_string();
        assert!(error.contains(expected), "{rule}: {error}");
    }
}

#[test]
fn rule_of_a_name_at_docker_hub_covers_the_official_image_too() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = Recorded::read();
    let rule = |prefix: &str, key: Option<&str>| match key {
        None => serde_json::json!({"prefix": prefix, "required": false}),
        Some(key) => {
            let file = folder.path().join(key);
            std::fs::write(&file, &recorded.keys[key]).unwrap();
            serde_json::json!({"prefix": prefix, "keys": [file]})
        }
    };
    let signers = |rules: &[serde_json::Value]| {
        let config = Config::parse(&serde_json::json!({"signatures": rules}).to_string()).unwrap();
        Signers::read(&config).unwrap()
    };
    let covered = |signers: &Signers, names: &[&str]| {
        names.iter().map(|text| signers.cover(&name(text))).collect::<Vec<_>>()
    };
    let names = ["python", "python/app", "pythons", "docker.io:443/python", "ghcr.io/library/python"];
    let one = signers(&[rule("docker.io/python", Some("p256"))]);
    assert_eq!(covered(&one, &names), [true, true, false, true, false]);
    // An exception for an organization does not cover the official image of its name.
    let excepted = signers(&[rule("docker.io", Some("p256")), rule("docker.io/python", None)]);
    assert_eq!(covered(&excepted, &names), [true, false, true, true, false]);
    let port = signers(&[rule("ghcr.io:443/org", Some("p256"))]);
    assert_eq!(covered(&port, &["ghcr.io/org/app", "ghcr.io:443/org/app"]), [true, true]);
    // The closest rule gives the keys.
    let keys = |rules: &[serde_json::Value]| {
        let signers = signers(rules);
        let evidence = recorded.evidence();
        let counts = |key: &str| {
            let own = Signers::of_all(&recorded.keys[key]);
            let mut of_key = evidence.iter().filter(|e| own.check(&name("a"), e).is_ok());
            of_key.any(|e| signers.check(&name("python"), e).is_ok())
        };
        (counts("p256"), counts("p384"))
    };
    let (library, alone) = (rule("docker.io/library", Some("p256")), rule("docker.io/python", Some("p384")));
    assert_eq!(keys(&[library.clone(), alone.clone()]), (false, true));
    assert_eq!(keys(&[rule("docker.io/library/python", Some("p256")), alone]), (true, false));
}

#[test]
fn weak_and_broken_keys_of_ed25519_are_refused() {
    let pem = |point: &[u8]| {
        let der = [&[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00], point].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    };
    let mut identity = [0; 32];
    identity[0] = 1;
    // The neutral element, with which anything verifies; no point of the curve; too short.
    for point in [&identity[..], &[2; 32], &[0; 31]] {
        let refused = Key::parse(pem(point).as_bytes()).unwrap_err();
        assert!(refused.contains("has a key that is not supported"), "{refused}");
    }
}
