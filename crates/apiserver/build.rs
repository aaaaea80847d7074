//! Turns the built-in CustomResourceDefinitions from YAML into JSON: reading 800 kB of YAML would be most of what a
//! first start costs, reading the same as JSON is some milliseconds.

use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    for folder in ["../api/crds", "../api/views", "../policy/crds"] {
        let source = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join(folder);
        println!("cargo::rerun-if-changed={}", source.display());
        for file in fs::read_dir(&source)? {
            files.push(file?);
        }
    }
    files.sort_by_key(fs::DirEntry::path);
    let out = Path::new(&env::var("OUT_DIR")?).to_path_buf();
    let mut table = String::from("&[\n");
    for file in files {
        let path = file.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let value: serde_json::Value = serde_saphyr::from_str(&fs::read_to_string(&path)?)?;
        let name = value["metadata"]["name"].as_str().ok_or("a definition without a name")?;
        let text = value.to_string();
        // FNV-1a: distinguishes texts, so that a later release replaces what an older one has stored.
        let mark = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let json = out.join(format!("{stem}.json"));
        fs::write(&json, text)?;
        table.push_str(&format!(
            "BuiltIn {{ name: {name:?}, mark: \"{mark:016x}\", json: include_str!({:?}) }},\n",
            json.display().to_string()
        ));
    }
    table.push(']');
    fs::write(out.join("definitions.rs"), table)?;
    Ok(())
}
