//! A daemon in a folder of its own, over the real binary; needs no privileges.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

pub(crate) struct Scene {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) daemon: Option<Child>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Scene {
    /// With these lines of configuration, an empty folder of manifests, and no daemon.
    pub(crate) fn with(ownership: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display();
        let config = format!(
            "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: dry-run\nownership: {ownership}\n\
             stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n{more}"
        );
        fs::write(folder.path().join("config.yaml"), config).unwrap();
        fs::create_dir(folder.path().join("pods")).unwrap();
        Self { folder, daemon: None }
    }

    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Writes the manifest of a pod of one container, which has these further fields.
    pub(crate) fn manifest(&self, folder: &str, name: &str, fields: &str) {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: app{fields}}}]}}\n"
        );
        fs::write(self.file(&format!("{folder}/{name}.yaml")), manifest).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_enforcer"));
        command.arg("--config").arg(self.file("config.yaml")).args(arguments);
        command
    }

    /// Starts the daemon, and does not wait for it.
    pub(crate) fn run(&mut self) {
        let mut run = self.command(&["run"]);
        self.daemon = Some(run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    /// As a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    /// What a verb prints, and its exit status.
    pub(crate) fn verb(&self, arguments: &[&str]) -> (String, i32) {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        (text, status.code().unwrap())
    }

    /// The events of a type, oldest first.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let output = self.command(&["-o", "jsonl", "events", "--type", kind]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
