//! What the rules look at: the repository's text files and its packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::scrub;

/// Folders that hold results, not sources.
const SKIPPED_FOLDERS: [&str; 4] = ["target", ".git", "corpus", "artifacts"];
const TEXT_EXTENSIONS: [&str; 4] = ["rs", "toml", "md", "py"];

#[derive(Debug, Default)]
pub(super) struct Tree {
    /// By path relative to the root, with `/` between the parts.
    pub(super) files: BTreeMap<String, File>,
    pub(super) packages: Vec<Package>,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) text: String,
    /// For a Rust file, its text with comments and the insides of literals blanked, line by line
    /// as in `text`; empty for any other file.
    pub(super) code: String,
}

/// A member of the workspace, as `cargo metadata` reports it.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) description: Option<String>,
    /// Folder of the manifest, relative to the root.
    pub(super) folder: String,
    pub(super) dependencies: Vec<Dependency>,
    /// Source files that cargo compiles by name: libraries, programs, tests, benches, examples.
    pub(super) targets: Vec<Target>,
}

#[derive(Debug)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Linked into the crate, or run to build it.
    Build,
    /// Only for its tests, benches and examples.
    Dev,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Workspace,
    Registry,
}

#[derive(Debug)]
pub(super) struct Target {
    pub(super) path: String,
    pub(super) role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Library,
    Program,
    /// Tests, benches, examples and build scripts.
    Other,
}

impl Tree {
    /// Reads the repository at `root`.
    ///
    /// # Errors
    ///
    /// When a file or folder cannot be read, or `cargo metadata` fails.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self {
            files: BTreeMap::new(),
            packages: packages(root)?,
        };
        tree.read_folder(root, "")?;
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        let entries = fs::read_dir(folder).with_context(|| format!("reading {prefix}/"))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {prefix}/"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().with_context(|| path.clone())?;
            if kind.is_dir() && !SKIPPED_FOLDERS.contains(&name.as_str()) {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && is_text(&path) {
                let text = fs::read_to_string(entry.path()).with_context(|| path.clone())?;
                self.files.insert(path.clone(), File::new(&path, text));
            }
        }
        Ok(())
    }

    /// The Rust files, by path.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&str, &File)> {
        self.files
            .iter()
            .filter(|(path, _)| has_extension(path, &["rs"]))
            .map(|(path, file)| (path.as_str(), file))
    }
}

impl File {
    fn new(path: &str, text: String) -> Self {
        let code = if has_extension(path, &["rs"]) {
            scrub::code_only(&text)
        } else {
            String::new()
        };
        Self { text, code }
    }
}

impl Package {
    /// The name without the prefix that all crates of the workspace share.
    pub(super) fn short_name(&self) -> &str {
        self.name.strip_prefix("vrampager-").unwrap_or(&self.name)
    }

    pub(super) fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }
}

pub(super) fn has_extension(path: &str, extensions: &[&str]) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(_, extension)| extensions.contains(&extension))
}

fn is_text(path: &str) -> bool {
    has_extension(path, &TEXT_EXTENSIONS) || path.starts_with(".ci/")
}

/// The parts of `cargo metadata`'s answer that the rules need.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    description: Option<String>,
    manifest_path: String,
    dependencies: Vec<MetadataDependency>,
    targets: Vec<MetadataTarget>,
}

#[derive(Deserialize)]
struct MetadataDependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

#[derive(Deserialize)]
struct MetadataTarget {
    kind: Vec<String>,
    src_path: String,
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = crate::cargo()
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    metadata
        .packages
        .into_iter()
        .map(|package| package.into_package(root))
        .collect()
}

impl MetadataPackage {
    fn into_package(self, root: &Path) -> Result<Package> {
        let manifest = relative(&self.manifest_path, root)?;
        let folder = manifest
            .strip_suffix("/Cargo.toml")
            .unwrap_or(&manifest)
            .to_owned();
        let dependencies = self
            .dependencies
            .into_iter()
            .map(Dependency::from)
            .collect();
        let targets = self
            .targets
            .into_iter()
            .map(|target| {
                let path = relative(&target.src_path, root)?;
                Ok(Target {
                    path,
                    role: role(&target.kind),
                })
            })
            .collect::<Result<_>>()?;
        let Self {
            name, description, ..
        } = self;
        Ok(Package {
            name,
            description,
            folder,
            dependencies,
            targets,
        })
    }
}

impl From<MetadataDependency> for Dependency {
    fn from(dependency: MetadataDependency) -> Self {
        let kind = if dependency.kind.as_deref() == Some("dev") {
            Kind::Dev
        } else {
            Kind::Build
        };
        let origin = if dependency.path.is_some() {
            Origin::Workspace
        } else {
            Origin::Registry
        };
        Self {
            name: dependency.name,
            kind,
            origin,
        }
    }
}

fn role(kinds: &[String]) -> Role {
    match kinds.first().map(String::as_str) {
        Some("lib" | "cdylib" | "rlib" | "dylib" | "staticlib" | "proc-macro") => Role::Library,
        Some("bin") => Role::Program,
        _ => Role::Other,
    }
}

fn relative(path: &str, root: &Path) -> Result<String> {
    let relative = Path::new(path)
        .strip_prefix(root)
        .with_context(|| format!("{path} lies outside the repository"))?;
    Ok(relative.to_string_lossy().into_owned())
}

#[cfg(test)]
impl Tree {
    /// A tree of these files (path, text) and no package.
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), File::new(path, (*text).to_owned())))
            .collect();
        Self {
            files,
            packages: Vec::new(),
        }
    }

    pub(super) fn with(mut self, package: Package) -> Self {
        self.packages.push(package);
        self
    }
}

#[cfg(test)]
impl Package {
    /// A described library of this name in its usual folder, without dependencies.
    pub(super) fn of(name: &str) -> Self {
        let folder = format!("crates/{}", name.strip_prefix("vrampager-").unwrap_or(name));
        Self {
            name: name.to_owned(),
            description: Some("Something".to_owned()),
            targets: vec![Target {
                path: format!("{folder}/src/lib.rs"),
                role: Role::Library,
            }],
            folder,
            dependencies: Vec::new(),
        }
    }

    pub(super) fn on(mut self, name: &str, kind: Kind) -> Self {
        let origin = if name.starts_with("vrampager") || name == "xtask" {
            Origin::Workspace
        } else {
            Origin::Registry
        };
        self.dependencies.push(Dependency {
            name: name.to_owned(),
            kind,
            origin,
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_read_with_its_packages_and_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let tree = Tree::read(root).unwrap();

        let addr = tree
            .packages
            .iter()
            .find(|p| p.name == "vrampager-addr")
            .unwrap();
        assert_eq!(addr.short_name(), "addr");
        assert_eq!(addr.manifest(), "crates/addr/Cargo.toml");
        let hal = tree
            .packages
            .iter()
            .find(|p| p.name == "vrampager-hal")
            .unwrap();
        assert!(hal.dependencies.iter().any(|d| {
            d.name == "vrampager-addr" && d.kind == Kind::Build && d.origin == Origin::Workspace
        }));
        assert!(tree.files.contains_key("crates/addr/src/lib.rs"));
        assert!(!tree.files.keys().any(|path| path.starts_with("target/")));
    }
}
