#!/bin/bash
# A run on several nodes: sbatch examples/slurm.sh. One task per node joins the cluster of the first; docs/clusters.md has the rest.
# All nodes must have the same ~/.ray/auth_token: a shared home is enough.
#SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --mem=0
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export FARM_CACHE=$HOME/farm-cache RAY_AUTH_MODE=token
ray get-auth-token --generate > /dev/null
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --nodes=1 --ntasks=1 -w "$head" --overlap farm node start --head --port=6379 --block &
sleep 30
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) -x "$head" farm node start --address="$head:6379" --block &
sleep 30
srun --nodes=1 --ntasks=1 -w "$head" --overlap farm run configs/cuda.yaml --address "$head:6379" --results "$HOME/results"
