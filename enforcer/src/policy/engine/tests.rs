mod contain;
mod property;
mod rig;
mod scenario;
mod soft;
