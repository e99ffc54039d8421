"""`paratune doctor`: checks of this machine, and of a run before it starts, each with the reason and the remedy.

Imports only the two lowest layers; torch is imported inside the checks that need it. Nothing on the machine is changed:
the test of the disk writes a file without a name. docs/howto/doctor.md lists the findings.
`paratune.commands.doctor_run` collects the facts about data and model, which need packages of higher layers.
"""
