mod contain;
mod hostile;
mod oracle;
mod property;
mod rig;
mod scenario;
mod soft;
