//! The program, started for real, and clients of other makers.

mod activity;
mod clients;
mod curl;
mod execute;
mod files;
mod first_command;
mod first_process;
mod hostile;
mod python;
mod races;
mod rest;
mod served;
mod web;
