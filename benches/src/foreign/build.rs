//! Compiles drivers, into a folder beside the program that is named after what they are made of.
//! The sources are part of the program, so a driver fits the program that starts it.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use super::{Driver, JAVA_FLAGS, JavaLibrary, Language};
use crate::machine::Version;

macro_rules! sources {
    ($folder:literal: $($file:literal),+) => {
        &[$(($file, include_str!(concat!("../../drivers/", $folder, "/", $file)))),+]
    };
}

/// A file's name and its text.
type Source = (&'static str, &'static str);

const JAVA: &[Source] = sources!("java": "Driver.java", "Library.java", "Workload.java", "Recorder.java",
    "Cpu.java", "Jdk.java", "Netty.java");
const GO: &[Source] = sources!("go": "go.mod", "main.go", "timers.go", "recorder.go", "workloads.go",
    "clock_linux.go", "clock_other.go");

/// Why a driver cannot run.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// What it needs is not installed.
    Missing(String),
    Failed(String),
}

impl Trouble {
    pub(crate) fn line(&self, driver: &Driver) -> String {
        match self {
            Trouble::Missing(what) => format!("{}: skipped, no {what}", driver.name),
            Trouble::Failed(how) => format!("{}: skipped, {how}", driver.name),
        }
    }
}

/// Compiles a driver if that was not done before. Says which versions it consists of.
pub(crate) fn prepare(driver: &Driver) -> Result<Vec<Version>, Trouble> {
    let versions = driver.versions()?;
    let failed =
        |error: &io::Error| Trouble::Failed(format!("its driver was not compiled: {error}"));
    let built = driver.folder().map_err(|error| failed(&error))?;
    if !built.is_dir() {
        begin!("         {}: compiling its driver .. ", driver.name);
        let began = Instant::now();
        let done = driver.compile(&built);
        complain!("{:.1} s", began.elapsed().as_secs_f64());
        done.map_err(|error| failed(&error))?;
    }
    Ok(versions)
}

impl Driver {
    fn sources(&self) -> Vec<Source> {
        match &self.language {
            Language::Go => GO.to_vec(),
            Language::Java { class, .. } => {
                let is_library = |file: &str| ["Jdk.java", "Netty.java"].contains(&file);
                let own = format!("{class}.java");
                let mut all = JAVA.to_vec();
                all.retain(|(file, _)| !is_library(file) || *file == own);
                all
            }
        }
    }

    /// Where the compiled driver lies. It is there as a whole or not at all.
    fn folder(&self) -> io::Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        self.sources().hash(&mut hasher);
        let mut beside = std::env::current_exe()?;
        beside.pop();
        // The programs of tests lie one folder deeper.
        if beside.ends_with("deps") {
            beside.pop();
        }
        let name = format!("{}-{:016x}", self.name, hasher.finish());
        Ok(beside.join("drivers").join(name))
    }

    /// The versions of what it needs; all of that is there then.
    fn versions(&self) -> Result<Vec<Version>, Trouble> {
        let version = |name: &str, version: Option<&str>| Version {
            name: name.to_owned(),
            version: version.unwrap_or("unknown").to_owned(),
        };
        match &self.language {
            Language::Go => {
                let said = ask("go", "version", "golang-go")?;
                let number = said.split_whitespace().nth(2);
                let number = number.map(|number| number.trim_start_matches("go"));
                Ok(vec![version("go", number)])
            }
            Language::Java { library, .. } => {
                const PACKAGE: &str = "default-jdk-headless";
                ask("java", "-version", PACKAGE)?;
                let said = ask("javac", "-version", PACKAGE)?;
                let mut versions = vec![version("java", said.split_whitespace().nth(1))];
                if let Some(library) = library {
                    let missing = || Trouble::Missing(library.package.to_owned());
                    // A link to the file that has the version in its name.
                    let file = std::fs::canonicalize(library.jar).map_err(|_| missing())?;
                    versions.push(version(library.name, library.version(&file).as_deref()));
                }
                Ok(versions)
            }
        }
    }

    /// Compiles it in a folder of this process, which then gets its name: somebody else may do the
    /// same.
    fn compile(&self, built: &Path) -> io::Result<()> {
        let mut part = built.as_os_str().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        std::fs::create_dir_all(&part)?;
        for (file, text) in self.sources() {
            std::fs::write(part.join(file), text)?;
        }
        let mut compiler = match &self.language {
            Language::Go => {
                let mut go = Command::new("go");
                go.args(["build", "-o", "driver", "."]);
                // Nothing is downloaded for it.
                go.env("GOTOOLCHAIN", "local").env("GOPROXY", "off");
                go.env("GOFLAGS", "").env("GOWORK", "off");
                go
            }
            Language::Java { .. } => {
                let mut javac = Command::new("javac");
                javac.args(["--release", "11", "-d", "."]);
                javac.arg("-cp").arg(self.class_path(&part));
                javac.args(self.sources().iter().map(|(file, _)| file));
                javac
            }
        };
        succeed(&compiler.current_dir(&part).output()?)?;
        match std::fs::rename(&part, built) {
            Err(_) if built.is_dir() => std::fs::remove_dir_all(&part),
            renamed => renamed,
        }
    }

    fn class_path(&self, built: &Path) -> OsString {
        let mut path = built.as_os_str().to_owned();
        if let Language::Java {
            library: Some(library),
            ..
        } = &self.language
        {
            path.push(":");
            path.push(library.jar);
        }
        path
    }

    /// The command that starts it, with its arguments behind the name of a workload.
    pub(super) fn command(&self) -> io::Result<Vec<OsString>> {
        let built = self.folder()?;
        Ok(match &self.language {
            Language::Go => vec![built.join("driver").into_os_string()],
            Language::Java { class, .. } => {
                let mut words: Vec<OsString> = vec!["java".into()];
                words.extend(JAVA_FLAGS.map(OsString::from));
                words.extend(["-cp".into(), self.class_path(&built)]);
                words.extend(["Driver".into(), (*class).into()]);
                words
            }
        })
    }
}

impl JavaLibrary {
    /// The part of the file's name behind that of the jar.
    fn version(&self, file: &Path) -> Option<String> {
        let plain = Path::new(self.jar).file_stem()?.to_str()?;
        let full = file.file_stem()?.to_str()?;
        Some(full.strip_prefix(plain)?.strip_prefix('-')?.to_owned())
    }
}

/// What a tool says of its version. Some say it on the standard error.
fn ask(tool: &str, argument: &str, package: &str) -> Result<String, Trouble> {
    match Command::new(tool).arg(argument).output() {
        Ok(output) if output.status.success() => {
            let said = [output.stdout, output.stderr].concat();
            Ok(String::from_utf8_lossy(&said).into_owned())
        }
        Ok(output) => {
            let how = format!("{tool} {argument}: {}", output.status);
            Err(Trouble::Failed(how))
        }
        Err(_) => Err(Trouble::Missing(format!("{tool} (the package {package})"))),
    }
}

fn succeed(output: &Output) -> io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    Err(io::Error::other(String::from_utf8_lossy(&said).trim()))
}
